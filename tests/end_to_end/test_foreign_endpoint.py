"""`target.*` of `python -m loadgen probe`: a gateway that is little like vLLM is measured as it is."""

import json
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from analysis import load_run
from analysis.results import summary
from tests.support.machine import tries
from tests.support.machine.patience import START_S
from tests.support.servers.certificates import self_signed, server_tls
from tests.support.servers.mock_server import Script, head, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
REFUSED = {"stream_options", "ignore_eos", "min_tokens", "temperature", "max_tokens"}
WORDS = [
    *("rate_qps=8", "duration_s=4", "engine=external", "workload=smoke", "workload.prompt=chat"),
    *("workload.output_tokens.mean=4", "fleet.actors=1"),
    *("fleet.warmup_requests=2", "search.settle_s=2", "search.transition_s=1"),
    *("target.list_models=false", "target.omit=[stream_options,ignore_eos,min_tokens,temperature]"),
    "target.max_tokens_field=max_completion_tokens",
]


def packed(events: list[bytes]) -> list[bytes | float | None]:
    """Chunks of HTTP, each with one event that can be unpacked at once."""
    pack = zlib.compressobj(wbits=31)
    pieces: list[bytes | float | None] = []
    for event in events:
        piece = pack.compress(b"data: " + event + b"\n\n") + pack.flush(zlib.Z_SYNC_FLUSH)
        pieces += [b"%x\r\n%s\r\n" % (len(piece), piece), 0.02]
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
    words = [*WORDS, *own, f"out={folder.parent}", f"run={folder.name}"]
    done = subprocess.run(
        [sys.executable, "-m", "loadgen", "probe", "--json", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * START_S,
    )
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
