"""`python -m loadgen` as a user runs it: what is refused, what is interrupted, and the exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import load_run
from loadgen.__main__ import main
from tests.support.machine import tries
from tests.support.machine.patience import PATIENCE_S
from tests.support.runs.run_folders import check_folder

ROOT = Path(__file__).parents[2]


def command(verb: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "loadgen", verb, *words]


def run(verb: str, *words: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(verb, *words), cwd=ROOT, capture_output=True, text=True, timeout=timeout)


@pytest.mark.slow
def test_what_is_refused_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    done = run("sweep", f"out={tmp_path}", "run=mine")
    assert (done.returncode, done.stdout) == (2, "")
    assert "exists; choose another run=NAME" in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_a_dry_run_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--dry-run", f"out={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f'out: "{tmp_path}"  # default "runs"\n') and "345 s of load" in said
    assert "# 1 replica(s) on 1 node(s): 1 x TP8/EP8\n" in said
    assert not list(tmp_path.iterdir())


def test_predict_answers_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--json", "search=standard"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    q = last["capacity"]["qps_per_node"]
    assert last["event"] == "result" and q["low"] < q["certified"] < q["value"] < q["high"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("no_session", "nothing_left")
@pytest.mark.parametrize(
    "words",
    [["sweep"], ["sweep", "search.repeats=2"], ["compare", "b.target.urls=[http://127.0.0.1:8]"]],
    ids=["sweep", "repeats", "compare"],
)
def test_an_unreachable_target_is_exit_5_and_leaves_no_folder(words: list[str], tmp_path: Path) -> None:
    done = run(*words, "engine=external", "target.urls=[http://127.0.0.1:9]", f"out={tmp_path}", "run=gone")
    assert done.returncode == 5, done.stderr
    assert "NO RESULT" in done.stdout and "127.0.0.1:9" in done.stdout
    assert "run folder" not in done.stdout and "resume" not in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("no_session", "nothing_left")
def test_an_interrupted_sweep_of_a_split_node_keeps_everything_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    """By SIGTERM, for which Ray has a handler of its own; of Ctrl-C see the tests of faults."""
    words = ["layout=1p1d_tp4_ep4", "--json", f"out={tmp_path}", "run=cut", *tries.BRACKETING]
    process = subprocess.Popen(command("sweep", *words), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "window_done":
            break
    process.terminate()
    rest = process.stdout.read().splitlines()
    assert process.wait(PATIENCE_S) == 130
    assert json.loads(rest[-1])["exit_code"] == 130
    folder = tmp_path / "cut"
    result = check_folder(folder)
    assert result["requests"]["by_status"].get("ok", 0) > 0
    assert not result["valid"] and not result["passed"]
    tells_of_both_sides(folder)
    assert (folder / "report.html").exists()
    shown = subprocess.run(
        [sys.executable, "-m", "analysis", "show", str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert shown.stdout.startswith("INTERRUPTED"), shown.stderr


def tells_of_both_sides(folder: Path) -> None:
    """The seconds of a split node's run: the prefill engine's beside the decode engine's."""
    server = load_run(folder).manifest["server"]
    assert server["shape"] == "1 x TP4/EP4 prefill + 1 x TP4/EP4 decode"
    (prefill,) = server["prefill"]
    seconds = load_run(folder).timeseries().to_pylist()
    assert {row["replica"] for row in seconds} == {f"prefill-{prefill}", *server["replica_nodes"]}
    computed = [row["prompt_tokens"] or 0 for row in seconds if row["replica"] == f"prefill-{prefill}"]
    assert max(computed) > 0
