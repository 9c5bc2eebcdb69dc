"""vLLM's own server as a child process behind a replica: the same API, and nobody is left when it ends.

A deployment of its own, hence a file of its own: a process has one Ray session at a time.
"""

import json
import time
import urllib.request
from pathlib import Path

import pytest

from conf import load
from loadgen import measure
from tests.vllm.test_deployed import RATE_QPS, WORDS, Up

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

LONG_TOKENS = 8000
METRICS_S = 1.0
"""So long after the first part its request surely stands in the metrics, or is gone from them."""


def leave_in_the_middle(up: Up) -> float:
    """Tokens that vLLM computes of a long answer whose client leaves after its first part."""
    tokens, running = "generation_tokens_total", "num_requests_running"
    before = up.counters((tokens,))[tokens]
    model = load(WORDS).model.served_name
    body = {"model": model, "prompt": [1, 2], "max_tokens": LONG_TOKENS, "ignore_eos": True, "stream": True}
    asked = urllib.request.Request(
        f"{up.served.urls[0]}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.readline().startswith(b"data: {")
    time.sleep(METRICS_S)
    while up.counters((running,))[running]:
        time.sleep(0.2)
    return up.counters((tokens,))[tokens] - before


def test_the_fallback_serves_the_same_api(tmp_path: Path) -> None:
    """Another deployment: vLLM's own server process behind a plain replica."""
    from loadgen.site import service

    words = [*WORDS, "engine.server=process", "routing=roundrobin"]
    with service(load(words), lambda *_, **__: None) as served:
        fallback = Up(served, tmp_path)
        tree, run = fallback.run("probe", measure.hold, f"rate_qps={RATE_QPS}", "duration_s=8")
        (replica,) = served.reported["replicas"].values()
        assert leave_in_the_middle(fallback) < LONG_TOKENS
    assert replica["pid"] and "--enforce-eager" in replica["told"]["engine"]["argv"]
    # A busy machine may miss sending some; whatever was sent is answered.
    statuses = run.requests()["status"].to_pylist()
    assert "ok" in statuses and set(statuses) <= {"ok", "missed"}, tree["reason"]
