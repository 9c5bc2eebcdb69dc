"""`python -m loadgen sweep` on real Ray, Serve and HTTP: its answer, its folder, and the page beside it."""

import json
import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from analysis import load_run
from analysis.results import summary
from tests.support.machine import tries
from tests.support.machine.patience import PATIENCE_S, START_S, until
from tests.support.runs.run_folders import check_folder

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]


def url_of(process: "subprocess.Popen[str]") -> str:
    assert process.stderr
    for line in process.stderr:
        if match := re.search(r"live view: (http://127\.0\.0\.1:\d+/)$", line.strip()):
            return match[1]
    raise AssertionError("no address was told")


def metrics(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}metrics", timeout=PATIENCE_S) as page:
        text = page.read().decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "status" not in sample.labels
    }


def states(stream: Any) -> list[dict[str, Any]]:
    lines = (line for line in stream if line.startswith(b"data: "))
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


@pytest.mark.usefixtures("no_session", "nothing_left")
def test_a_whole_sweep_finds_the_capacity_and_is_seen_while_it_loads(tmp_path: Path) -> None:
    """A neighbour may spoil the timing of a try, or leave an end open; never the rows, never the honesty."""
    tree = tries.valid(lambda number: swept(tmp_path / f"try-{number}", number), enough=tries.bracketed)
    capacity, predicted = tree["capacity"]["qps_per_node"], tree["prediction"]["qps_per_node"]
    assert capacity["low"] < predicted["value"] < capacity["high"]
    assert tree["valid"] and tree["passed"] and tree["capacity"]["by_noise"]
    assert "constants" in {event["event"] for event in load_run(Path(tree["folder"])).events()}


def swept(folder: Path, seed: int) -> dict[str, Any]:
    """The verdict of one sweep, of which everything was checked that must hold however it ends."""
    words = ["--live", "0", *tries.BRACKETING, f"seed={seed}", f"out={folder.parent}", f"run={folder.name}"]
    pipes = {"cwd": ROOT, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    heard: list[dict[str, Any]] = []
    with subprocess.Popen([sys.executable, "-m", "loadgen", "sweep", *words], **pipes) as process:  # type: ignore[call-overload]
        url = url_of(process)
        rest = threading.Thread(target=process.stderr.read)
        rest.start()
        with urllib.request.urlopen(f"{url}events", timeout=START_S) as stream:
            listener = threading.Thread(target=lambda: heard.extend(states(stream)))
            listener.start()
            until(lambda: "maxqps_in_flight" in metrics(url), "no window was ever seen", START_S)
            seen = metrics(url)
            out, _ = process.stdout.read(), rest.join()
            listener.join(PATIENCE_S)
    check_page(heard, folder, process.wait(), out)
    check_metrics(seen)
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=PATIENCE_S)
    return check_proof(folder, process.returncode)


def check_page(heard: list[dict[str, Any]], folder: Path, code: int, out: str) -> None:
    """The stream told windows while they ran, then the end."""
    runs = [tree["run"] for tree in heard]
    windows = [run["now"] for run in runs if run["now"]]
    assert windows and all(0 <= now["pending"] <= now["sent"] for now in windows)
    assert {now["kind"] for now in windows} == {"window"}
    last = runs[-1]
    assert (last["run_id"], last["verb"]) == (folder.name, "sweep")
    assert last["ending"]["exit_code"] == code and last["ending"]["text"] in out
    assert last["ending"]["report"] == str(folder / "report.html")
    assert not (folder / "live.json").exists()


def check_metrics(seen: dict[str, float]) -> None:
    assert seen["maxqps_nodes"] == 1 and seen["maxqps_ended"] == 0
    assert seen["maxqps_budget_seconds"] == 45 and 0 < seen["maxqps_offered_qps"] < 100
    assert seen["maxqps_bound_seconds"] > 0 and seen["maxqps_send_lag_gate_seconds"] > 0


def check_proof(folder: Path, code: int) -> dict[str, Any]:
    """The verdict in the folder, for which its rows, events and samples stand."""
    result = check_folder(folder)
    assert result["exit_code"] == code and result["valid"] == (code != summary.EXIT_VOID)
    assert len(result["windows"]) >= 2 and result["requests"]["by_status"]["ok"] > 50
    run = load_run(folder)
    assert run.windows().num_rows == len(result["windows"])
    assert {"prediction", "window", "window_done", "end"} <= {event["event"] for event in run.events()}
    assert run.manifest["server"]["models"]
    assert result["power"]["unknown"] == "the simulated engine uses no GPU"
    seconds = run.timeseries().to_pylist()
    replicas = set(run.manifest["server"]["replica_nodes"])
    assert len(seconds) > 20 and {row["replica"] for row in seconds} <= replicas
    assert max(row["running"] or 0 for row in seconds) > 0
    assert run.clients().num_rows > 20 and sum(run.clients()["sends"].to_pylist()) > 50
    return result
