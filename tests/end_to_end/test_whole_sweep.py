"""Whole commands over HTTP: a sweep on real Ray and its page, the quality gate, a gateway unlike vLLM."""

import json
import re
import subprocess
import threading
import urllib.request
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from analysis import load_run
from analysis.quality import answer_file
from analysis.results import summary
from loadgen.__main__ import main
from tests.support import commands
from tests.support.commands import WORDS
from tests.support.machine import tries
from tests.support.machine.patience import PATIENCE_S, START_S, until
from tests.support.runs.run_folders import check_folder
from tests.support.servers.certificates import self_signed, server_tls
from tests.support.servers.mock_server import Script, chunk, head, serving


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


@pytest.mark.ray
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
    heard: list[dict[str, Any]] = []
    with commands.begin("loadgen", "sweep", *words, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
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


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("on_standing")
def test_a_defect_is_found_beside_a_load_and_the_folder_says_so_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quality", *WORDS["gate"], f"out={tmp_path}", "--json"]) == summary.EXIT_DEGRADED
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["quality"]["verdict"] == "DEGRADED"
    assert result["requests"]["rows"] > 0
    path = tmp_path / "gate"
    assert (path / "report.html").exists()
    for side, repeats in (("a", {0, 1}), ("b", {0})):
        answers = answer_file.read(path / side / answer_file.FILE)
        assert {answer.repeat for answer in answers} == repeats
        assert all(answer.answer for answer in answers)
    assert main(["quality", str(path / "a"), str(path / "b"), "--json"]) == summary.EXIT_DEGRADED
    assert json.loads(capsys.readouterr().out)["quality"] == result["quality"]


REFUSED = {"stream_options", "ignore_eos", "min_tokens", "temperature", "max_tokens"}


def packed(events: list[bytes]) -> list[bytes | float | None]:
    """Chunks of HTTP, each with one event that can be unpacked at once."""
    pack = zlib.compressobj(wbits=31)
    pieces: list[bytes | float | None] = []
    for event in events:
        piece = pack.compress(b"data: " + event + b"\n\n") + pack.flush(zlib.Z_SYNC_FLUSH)
        pieces += [chunk(piece), 0.02]
    return [*pieces, b"0\r\n\r\n"]


def gateway(bodies: list[dict[str, Any]]) -> Script:
    """Chats, compressed and with status 201, for requests without the fields that it refuses."""

    def script(body: dict[str, Any]) -> list[bytes | float | None]:
        bodies.append(body)
        if REFUSED & set(body):
            return [b"HTTP/1.1 400 Unknown field\r\nContent-Length: 0\r\n\r\n"]
        count, words = body["max_completion_tokens"], body["messages"][0]["content"].split()
        choices = [
            {"delta": {"content": "x"}, "finish_reason": "length" if number == count - 1 else None}
            for number in range(count)
        ]
        usage = {"prompt_tokens": len(words), "completion_tokens": count}
        trees = [*({"choices": [choice]} for choice in choices), {"choices": [], "usage": usage}]
        events = [json.dumps(tree).encode() for tree in trees]
        return [head("201 Created", "Content-Encoding: gzip\r\n"), *packed([*events, b"[DONE]"])]

    return script


@pytest.mark.live
@pytest.mark.slow
def test_a_gateway_is_measured_as_it_is(tmp_path: Path) -> None:
    ca, bodies = self_signed(tmp_path), list[dict[str, Any]]()
    with serving(gateway(bodies), server_tls(ca)) as server:
        tree = tries.valid(lambda number: probed(server.url, ca, tmp_path / f"try-{number}"))
    # Four seconds are valid, and by the rule of a probe too short to show that the bounds are kept.
    assert (tree["exit_code"], tree["valid"]) == (summary.EXIT_OPEN, True), tree["reason"]
    assert {request.split(b" ")[1] for request, _ in server.requests} == {b"/team/llm/v1/chat/completions"}
    assert len(bodies) > 10 and not any(REFUSED & set(body) for body in bodies)


def probed(url: str, ca: Path, folder: Path) -> dict[str, Any]:
    """The verdict of one probe, whose rows and events must be right even where a busy machine voids it."""
    own = [f"target.urls=[{url}/team/llm/v1/]", f"target.ca_file={ca}"]
    words = [*WORDS["gateway"], *own, f"out={folder.parent}", f"run={folder.name}"]
    done = commands.run("loadgen", "probe", "--json", *words, timeout=2 * START_S)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["exit_code"] == done.returncode, done.stderr
    run = load_run(folder)
    rows = run.requests().to_pylist()
    counted = Counter((row["status"], row["http_status"]) for row in rows)
    assert counted["ok", 201] > 10 and {status for status, _ in counted} <= {"ok", "missed"}
    assert {row["output_tokens"] for row in rows if row["status"] == "ok"} == {4}
    said = [event["text"] for event in run.events() if event["event"] == "metrics"]
    unobserved = f"{url}/team/llm/metrics gives no metrics (HTTP 404): the engine is not observed"
    assert said == [unobserved], "the scraper trusts the same CA and keeps to the same path"
    return result
