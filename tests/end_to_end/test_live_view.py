"""The flag --live: what it refuses, and a real run that a stream and Prometheus read while it loads."""

import json
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.__main__ import main
from tests.support.golden import GOLDEN
from tests.support.patience import PATIENCE_S, START_S, until

ROOT = Path(__file__).parents[2]
SHORT = [
    "engine.time_scale=2",
    "workload.output_tokens.mean=40",
    "search.window_s=16",
    "search.first_transition_s=4",
    "search.transition_s=2",
    "search.budget_s=50",
    "search.min_dwells=2",
    "fleet.warmup_requests=4",
    "fleet.drain_s=3",
]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["sweep", "--live", "eighty"], "--live eighty: give a port"),
        (["sweep", "--live", "70000"], "--live 70000: give a port"),
        (["sweep", "--live", "192.0.2.1:9000"], "cannot listen there"),
        (["predict", "--live", "0"], "predict computes its answer; leave it out"),
        (["recommend", "demand.peak_qps=20", "--live", "0"], "recommend loads with --measure only"),
        (["progressive", "--live", "0"], "this clock is virtual"),
        (["quality", str(GOLDEN), str(GOLDEN), "--live", "0"], "these answers are on record"),
    ],
)
@pytest.mark.parametrize("dry", [True, False], ids=["dry", "real"])
def test_a_page_that_could_not_be_is_refused_in_one_line(
    words: list[str], why: str, dry: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--dry-run"] if dry else words) == 2
    said = capsys.readouterr()
    assert why in said.err and said.err.count("\n") == 1 and not said.out


@pytest.mark.parametrize("words", [["sweep"], ["resume", str(GOLDEN)]], ids=["sweep", "resume"])
def test_a_port_that_is_taken_is_refused_before_anything_starts(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main([*words, "--live", port, "--dry-run"]) == 2
        assert main([words[0], "--live", port, *words[1:]]) == 2
    assert capsys.readouterr().err.count("cannot listen there") == 2


def test_a_dry_run_with_a_free_port_starts_no_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--live", "0", "--dry-run"]) == 0
    assert not capsys.readouterr().err
    assert "live view" not in [thread.name for thread in threading.enumerate()]


def url_of(process: "subprocess.Popen[str]") -> str:
    assert process.stderr
    for line in process.stderr:
        if found := re.search(r"live view: (http://127\.0\.0\.1:\d+/)$", line.strip()):
            return found[1]
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


@pytest.mark.ray
@pytest.mark.usefixtures("nothing_left")
def test_a_real_run_is_read_while_it_loads_and_its_end_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadgen", "sweep", "--live", "0", *SHORT, f"out={tmp_path}", "run=seen"]
    words = {"cwd": ROOT, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    heard: list[dict[str, Any]] = []
    with subprocess.Popen(command, **words) as process:  # type: ignore[call-overload]
        url = url_of(process)
        rest = threading.Thread(target=process.stderr.read)
        rest.start()
        with urllib.request.urlopen(f"{url}events", timeout=START_S) as stream:
            listener = threading.Thread(target=lambda: heard.extend(_states(stream)))
            listener.start()
            until(lambda: "maxqps_in_flight" in metrics(url), "no window was ever seen", START_S)
            seen = metrics(url)
            out, _ = process.stdout.read(), rest.join()
            listener.join(PATIENCE_S)
    assert process.wait() in (0, 4, 6), out  # a busy machine makes windows void
    assert seen["maxqps_nodes"] == 1 and seen["maxqps_ended"] == 0
    assert seen["maxqps_budget_seconds"] == 50 and 0 < seen["maxqps_offered_qps"] < 20
    assert seen["maxqps_bound_seconds"] > 0 and seen["maxqps_send_lag_gate_seconds"] > 0
    runs = [tree["run"] for tree in heard]
    windows = [run["state"]["now"] for run in runs if run["state"]["now"]]
    assert windows and all(0 <= now["pending"] <= now["sent"] for now in windows)
    assert {now["kind"] for now in windows} == {"dwell"}
    last = runs[-1]
    assert (last["state"]["run_id"], last["state"]["verb"]) == ("seen", "sweep")
    assert last["ending"]["exit_code"] == process.returncode and last["ending"]["text"] in out
    assert last["ending"]["report"] == str(tmp_path / "seen" / "report.html")
    assert not (tmp_path / "seen" / "live.json").exists()
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=PATIENCE_S)


def _states(stream: Any) -> list[dict[str, Any]]:
    lines = (line for line in stream if line.startswith(b"data: "))
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]
