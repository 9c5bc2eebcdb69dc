"""Real vLLM on this machine's CPU, deployed by Ray Serve, loaded by the real fleet, held to its own counters.

One deployment for all tests of the file: it takes about a minute.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import numpy as np
import pytest

from analysis.stats.quantiles import quantile, sectioning
from conf import Experiment, load
from loadgen.drive import fixed_rate
from loadgen.prompts.bodies import Prompts
from loadgen.run import measure
from loadgen.traffic.schedule import NS
from loadgen.traffic.traffic import Traffic
from tests.support.words.vllm_words import QUEUE, RATE_QPS, SECONDS, TRIES, WORDS
from tests.vllm import prefix_hits
from tests.vllm.running import Up

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

COUNTERS = ("prompt_tokens_total", "generation_tokens_total", "request_success_total")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    from loadgen.cli.deployment import service

    said: list[str] = []

    def emit(kind: str, /, **facts: Any) -> None:
        said.append(str(facts.get("text")))

    words = [*WORDS, *QUEUE]
    with service(load(words), emit) as served:
        assert any("replicas warm" in line for line in said), said
        yield Up(served, words, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short transition: what a plain client is held to has none."""
    monkeypatch.setattr(fixed_rate, "TRANSITION_S", 1.0)


def test_what_runs_is_read_back(up: Up) -> None:
    (replica,) = up.served.reported["replicas"].values()
    assert replica["pid"] and replica["load_s"] > 1
    assert replica["told"]["engine"]["scheduler"]["async_scheduling"] in (True, False)
    assert replica["told"]["engine"]["model"]["max_model_len"] == 8192
    assert up.served.reported["engine"]["args"]["max_model_len"] == 8192
    assert up.served.fault() is None


def test_a_short_sweep_ends_with_a_verdict_and_its_reason(up: Up) -> None:
    tree, run = up.run("sweep", measure.search)
    assert tree["exit_code"] in (0, 4, 6), tree["reason"]
    assert tree["valid"] == (tree["exit_code"] in (0, 6))
    assert tree["reason"] or tree["valid"]
    rows = run.requests()
    assert rows.num_rows == tree["requests"]["planned"]
    assert set(rows["status"].to_pylist()) <= {"ok", "missed"}


@pytest.mark.usefixtures("soon")
def test_tokens_and_finishes_agree_with_vllms_own_counters(up: Up) -> None:
    before = up.counters(COUNTERS)
    tree, run = up.run("probe", measure.hold, f"rate_qps={RATE_QPS}", "duration_s=8")
    after = up.counters(COUNTERS)
    rows = run.requests()
    ok = rows.filter(np.array(rows["status"].to_pylist()) == "ok")
    counted = {name: after[name] - before[name] for name in COUNTERS}
    assert ok.num_rows == counted["request_success_total"] > 0, tree["reason"]
    assert sum(ok["prompt_tokens"].to_pylist()) == counted["prompt_tokens_total"]
    assert sum(ok["output_tokens"].to_pylist()) == counted["generation_tokens_total"]
    assert set(ok["finish_reason"].to_pylist()) == {"length"}
    # The time in the queue is a part of the time to the first token.
    waited_us, first_ns = ok["queue_us"].to_pylist(), ok["first_token_offset_ns"].to_pylist()
    assert all(0 <= 1000 * waited < first for waited, first in zip(waited_us, first_ns, strict=True))


@pytest.mark.parametrize("share", prefix_hits.SHARES)
def test_the_intended_hit_rate_is_met(share: float, up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix_hits.hold_to(share, up, monkeypatch)


@pytest.mark.usefixtures("soon")
def test_latencies_agree_with_a_plain_client(up: Up) -> None:
    """The same arrivals by our fleet and by aiohttp: the p90s' intervals overlap in one of `TRIES` tries.

    The engine shares two cores with whatever else runs here, so that one try may meet another machine than
    the next. Where every try is void, as beside processes that burn all cores, nothing can be compared.
    """
    ours, theirs, reason = [], [], ""
    for attempt in range(TRIES):
        words = (f"rate_qps={RATE_QPS}", f"duration_s={SECONDS:g}", f"run=ours-{attempt}")
        tree, _ = up.run("probe", measure.hold, *words)
        theirs.append(asyncio.run(plain_client(up.served.urls[0], load([*WORDS]))))
        ours += [tree] if tree["valid"] else []
        reason = tree["reason"]
        # A machine that others use is slow for a while: any of ours may be of the same time as any of theirs.
        if not all(disagreements(mine, other) for mine in ours for other in theirs):
            return
    if not ours:
        pytest.skip(f"all {TRIES} tries are void: {reason}")
    raise AssertionError(f"never agreed in {TRIES} tries: {disagreements(ours[-1], theirs[-1])}")


def disagreements(tree: dict[str, Any], theirs: list[tuple[float, float]]) -> list[str]:
    """A line for each limit whose p90s lie further apart than their intervals and a tenth allow."""
    apart = []
    for limit, values in zip(("ttft", "tpot"), 1e3 * np.transpose(theirs), strict=True):
        ours, at_ms = tree["probe"][limit], quantile(values, 0.9)
        assert at_ms is not None
        mine, other = ours["interval_ms"], sectioning(values, 0.9)
        assert mine and other, "fewer than 100 requests"
        room_ms = 0.1 * max(at_ms, ours["p90_ms"])
        if mine[0] > other[1] + room_ms or other[0] > mine[1] + room_ms:
            apart.append(f"{limit}: ours {ours['p90_ms']:.1f} {mine}, aiohttp's {at_ms:.1f} {other} ms")
    return apart


async def plain_client(url: str, asked: Experiment) -> list[tuple[float, float]]:
    """TTFT and TPOT in seconds of an open loop that knows nothing of ours but when and what to send."""
    end_ns = int(SECONDS * NS)
    drawn = Traffic(asked.workload).draw(
        RATE_QPS, {"window": (0, end_ns)}, dwell=0, first_seq=0, seed=asked.seed
    )
    prompts = Prompts(asked.workload, asked.model.served_name, asked.model.vocab, salt=77)
    began_s = time.monotonic() + 0.5
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def one(seq: int, due_ns: int, prompt: int, output: int) -> tuple[float, float]:
            due_s = began_s + due_ns / NS
            await asyncio.sleep(due_s - time.monotonic())
            body, at_s, tokens = prompts.body(seq, prompt, output), [], 0
            headers = {"Content-Type": "application/json"}
            async with client.post(f"{url}/v1/completions", data=body, headers=headers) as response:
                assert response.status == 200
                async for line in response.content:
                    if not line.startswith(b"data: {"):
                        continue
                    event = json.loads(line[6:])
                    if event["choices"] and event["choices"][0]["text"] is not None:
                        at_s.append(time.monotonic())
                    if event.get("usage"):
                        tokens = event["usage"]["completion_tokens"]
            return at_s[0] - due_s, (at_s[-1] - at_s[0]) / (tokens - 1)

        columns = drawn.seq, drawn.due_ns, drawn.input_tokens, drawn.output_tokens
        asked_for = zip(*(column.tolist() for column in columns), strict=True)
        return list(await asyncio.gather(*(one(*each) for each in asked_for)))
