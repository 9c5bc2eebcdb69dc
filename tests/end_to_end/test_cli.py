"""The commands as a user runs them: real Ray, real Serve, real HTTP, real files, exit codes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from analysis import load_run
from analysis.results.runs import RunError
from analysis.rows import records
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.ray
SHORT = [
    "search.window_s=10",
    "search.first_transition_s=6",
    "search.transition_s=4",
    "search.budget_s=30",
    "search.min_dwells=2",
    "fleet.warmup_requests=4",
    "fleet.drain_s=3",
]
FOLLOW_S = 0.2
BAD = {
    "slo.ttft_p90=3": "did you mean 'slo.ttft_p90_ms=",
    "workload=chat": "available: character, chat_5600_140",
    "slo.ttft_p90_ms=soon": "slo.ttft_p90_ms=soon must be a number",
    "rate_qps=-4": "rate_qps=-4.0 must be positive",
    "layout.replicas_per_node=2": "choose a smaller layout",
    "engine=vllm": "engine=vllm needs GPUs, which cluster=laptop only pretends to have",
    "engine=vllm_cpu": "engine=vllm_cpu needs vLLM's CPU build",
    "model=qwen3_vl_235b_bf16 layout=dp1_tp4 engine.activation_bytes=150e9": "does not fit",
    "engine.max_model_len=300000": "exceeds the model's 262144 tokens",
    "hardware=mi308x": "fp8_flop_per_s is unknown",
    "workload.input_tokens.mean=40000": "tokens exceed the 32768 that the engine holds",
}


def command(verb: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "loadgen", verb, *words]


def run(verb: str, *words: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(verb, *words), cwd=ROOT, capture_output=True, text=True, timeout=timeout)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails when a process that descends from the test's own outlives it; other Ray sessions may come and go.

    Orphans lose their parent, so whoever was a descendant at any moment is remembered.
    """
    before = set(psutil.Process().children(recursive=True))
    started: set[psutil.Process] = set()
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(FOLLOW_S):
            for parent in [psutil.Process(), *started]:
                with contextlib.suppress(psutil.Error):
                    started.update(parent.children(recursive=True))

    follower = threading.Thread(target=follow)
    follower.start()
    yield
    ended.set()
    follower.join()
    assert started, "the test started nothing"
    assert {str(one) for one in started - before if running(one)} == set()


def running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line_before_anything_starts(words: str, tmp_path: Path) -> None:
    done = run("sweep", *words.split(), f"out={tmp_path}")
    assert done.returncode == 2
    assert done.stdout == ""
    assert BAD[words] in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_run_folder_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    done = run("sweep", f"out={tmp_path}", "run=mine")
    assert done.returncode == 2 and "exists; choose another run=NAME" in done.stderr
    assert not list((tmp_path / "mine").iterdir())


def test_help_and_dry_run_start_nothing(tmp_path: Path) -> None:
    helped = subprocess.run(command("sweep", "--help"), cwd=ROOT, capture_output=True, text=True)
    assert helped.returncode == 0 and "python -m loadgen sweep" in helped.stdout
    dry = run("sweep", "--dry-run", f"out={tmp_path}")
    assert dry.returncode == 0 and "name: chat_5600_140" in dry.stdout and "345 s of load" in dry.stdout
    assert not list(tmp_path.iterdir())


def test_probe_without_a_rate_is_refused() -> None:
    done = run("probe")
    assert done.returncode == 2 and "probe needs rate_qps" in done.stderr


def test_predict_answers_as_json() -> None:
    done = run("predict", "--json", "search=standard")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and lines[-1]["event"] == "result"
    q = lines[-1]["capacity"]["qps_per_node"]
    assert q["low"] < q["certified"] < q["estimate"] < q["high"]


@pytest.mark.usefixtures("nothing_left")
def test_an_unreachable_target_is_exit_5_with_everything_saved(tmp_path: Path) -> None:
    done = run("sweep", "engine=external", "target.urls=[http://127.0.0.1:9]", f"out={tmp_path}", "run=gone")
    assert done.returncode == 5, done.stderr
    assert "NO RESULT" in done.stdout and "127.0.0.1:9" in done.stdout
    result = json.loads((tmp_path / "gone" / "sweep.json").read_text())
    assert (result["passed"], result["valid"], result["exit_code"]) == (False, False, 5)


def check_folder(folder: Path) -> dict[str, Any]:
    """What must hold of every run folder, however the run ended."""
    run_ = load_run(folder)
    rows = run_.requests()
    planned = sum(pq.read_table(file).num_rows for file in (folder / "schedule").glob("*.parquet"))
    assert rows.num_rows == planned
    assert len(set(rows["seq"].to_pylist())) == planned
    assert set(rows["status"].to_pylist()) <= {records.OK, *records.FAILURES}
    assert run_.sweep is not None
    assert run_.sweep["requests"]["rows"] == run_.sweep["requests"]["planned"] == planned
    assert run_.manifest["files"]["sweep.json"]
    assert run_.config.workload.name
    return run_.sweep


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_a_whole_sweep_leaves_a_folder_that_proves_its_answer(tmp_path: Path) -> None:
    done = run("sweep", "--json", f"out={tmp_path}", "run=whole", *SHORT)
    # A neighbour may spoil the timing on a shared machine; it may not spoil the rows, and never the honesty.
    assert done.returncode in (0, 3, 4, 6), done.stderr
    result = check_folder(tmp_path / "whole")
    assert json.loads(done.stdout.splitlines()[-1])["exit_code"] == done.returncode == result["exit_code"]
    assert result["valid"] == (done.returncode != 4)
    assert len(result["dwells"]) >= 2 and result["requests"]["by_status"]["ok"] > 50
    run_ = load_run(tmp_path / "whole")
    assert run_.dwells().num_rows == len(result["dwells"])
    assert {"prediction", "segment", "segment_done", "end"} <= {event["event"] for event in run_.events()}
    assert run_.manifest["server"]["models"]
    seconds = run_.timeseries().to_pylist()
    assert len(seconds) > 20 and {row["replica"] for row in seconds} <= set(
        run_.manifest["server"]["replica_nodes"]
    )
    assert max(row["running"] or 0 for row in seconds) > 0
    assert run_.clients().num_rows > 20 and sum(run_.clients()["sends"].to_pylist()) > 50


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_an_interrupted_sweep_keeps_everything_and_leaves_nothing_running(
    tmp_path: Path, kind: signal.Signals
) -> None:
    words = ["--json", f"out={tmp_path}", "run=cut", *SHORT]
    process = subprocess.Popen(command("sweep", *words), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "segment":
            break
    time.sleep(3)
    os.kill(process.pid, kind)
    rest = process.stdout.read().splitlines()
    assert process.wait(PATIENCE_S) == 130
    assert json.loads(rest[-1])["exit_code"] == 130
    result = check_folder(tmp_path / "cut")
    assert result["requests"]["by_status"].get("ok", 0) > 0
    assert not result["valid"] and not result["passed"]


def test_a_foreign_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        load_run(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "analysis", "show", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
