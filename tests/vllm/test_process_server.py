"""vLLM's own server as a child process behind a replica: the same API, and nobody is left when it ends.

A deployment of its own, hence a file of its own: a process has one Ray session at a time.
"""

from pathlib import Path

import pytest

from conf import load
from loadgen.run import measure
from tests.support.words.vllm_words import QUEUE, RATE_QPS, WORDS
from tests.vllm.running import Up

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


def test_the_fallback_serves_the_same_api(tmp_path: Path) -> None:
    """Another deployment: vLLM's own server process behind a plain replica."""
    from loadgen.cli.deployment import service

    words = [*WORDS, *QUEUE, "engine.server=process", "routing=roundrobin"]
    with service(load(words), lambda *_, **__: None) as served:
        fallback = Up(served, words, tmp_path)
        tree, run = fallback.run("probe", measure.hold, f"rate_qps={RATE_QPS}", "duration_s=8")
        (replica,) = served.reported["replicas"].values()
    assert replica["pid"] and "--enforce-eager" in replica["told"]["engine"]["argv"]
    # A busy machine may miss sending some; whatever was sent is answered.
    rows = run.requests().to_pylist()
    statuses = {row["status"] for row in rows}
    assert "ok" in statuses and statuses <= {"ok", "missed"}, tree["reason"]
    assert all(row["queue_us"] >= 0 for row in rows if row["status"] == "ok")
