"""`serve_apps.vllm_engine` and `loadgen.run`: real vLLM on this CPU, by Ray Serve, under load.

It is held to vLLM's own counters. One deployment for all tests of the file: it takes about a minute.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import numpy as np
import pytest

from analysis.figures.service import server_state
from analysis.results.runs import Run
from analysis.rows import metrics
from conf import Experiment, load
from loadgen.cli.service import service
from loadgen.drive import prepared_load, programs
from loadgen.prompts.bodies import Prompts
from loadgen.run.jobs import OfferLoad, SearchCapacity
from loadgen.traffic.schedule import NS
from loadgen.traffic.traffic import Traffic
from tests.support.machine import tries
from tests.support.words.words import QUEUE, RATE_QPS, SECONDS, TRIES, WORDS
from tests.vllm.running import Up, stream

pytestmark = pytest.mark.vllm

COUNTERS = ("prompt_tokens_total", "generation_tokens_total", "request_success_total")
CACHE_COUNTERS = QUERIES, HITS = "prefix_cache_queries_total", "prefix_cache_hits_total"
POINT = 0.01
BLOCKS = 20
"""Of a prompt: each intended hit rate is whole blocks of it, and a prefix cache serves no others."""
SHORT = "rate_qps=4", "duration_s=8"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    lines: list[str] = []

    def emit(kind: str, /, **facts: Any) -> None:
        lines.append(str(facts.get("text")))

    words = [*WORDS, *QUEUE]
    with service(load(words), emit) as served:
        assert any("replicas warm" in line for line in lines), lines
        yield Up(served, words, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short transition: what a plain client is held to has none, and caches would only become fuller."""
    monkeypatch.setattr(programs, "PROBE_TRANSITION_S", 1.0)
    monkeypatch.setattr(prepared_load, "PIECE_S", 1.0)


def test_what_runs_is_read_back(up: Up) -> None:
    (replica,) = up.served.reported["replicas"].values()
    assert replica["pid"] and replica["load_s"] > 1
    assert replica["told"]["engine"]["scheduler"]["async_scheduling"] in (True, False)
    assert replica["told"]["engine"]["model"]["max_model_len"] == 8192
    assert up.served.reported["engine"]["args"]["max_model_len"] == 8192
    assert up.served.fault() is None


@pytest.mark.usefixtures("soon")
def test_a_probe_is_valid_and_agrees_with_vllms_own_counters(up: Up) -> None:
    before = up.counters(COUNTERS)

    def agrees(tree: dict[str, Any], run: Run) -> None:
        nonlocal before
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
        before = after

    up.until_valid(OfferLoad, agrees, *SHORT)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    "share", [0.5, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.0, 0.95))]
)
def test_the_intended_hit_rate_is_met(share: float, up: Up) -> None:
    """vLLM finds so much of the prompts in its cache, and no more, however busy the machine is.

    The counters are taken over the window from the run's own samples, and over all of the run from vLLM's
    pages: there they agree with the usages token by token.
    """
    words = {
        "run": f"hits-{share:g}",
        "workload.prefix_hit": share,
        "workload.input_tokens.mean": BLOCKS * up.block_tokens(),
        "rate_qps": RATE_QPS,
        "duration_s": 4,
        "search.expected_qps": 2 * RATE_QPS,  # the warm-up has half of it
    }
    before = up.counters(CACHE_COUNTERS)
    tree, run = up.run(OfferLoad, *(f"{key}={value}" for key, value in words.items()))
    counted = {name: value - before[name] for name, value in up.counters(CACHE_COUNTERS).items()}
    tries.refuse_other_reasons(tree)
    rows = run.requests()
    assert counted[QUERIES] == np.nansum(metrics.numbers(rows, "prompt_tokens")) > 0
    assert counted[HITS] == np.nansum(metrics.numbers(rows, "cached_tokens"))
    (window,) = run.windows().to_pylist()
    ends_s = np.array([window["window_start_ns"], window["window_end_ns"]]) / NS
    assert window["prefix_hit_intended"] == pytest.approx(share)
    assert window["prefix_hit"] == pytest.approx(share, abs=POINT)
    assert server_state(run.timeseries(), ends_s)["prefix hit"][1] / 100 == pytest.approx(share, abs=POINT)
    (check,) = (check for check in tree["checks"] if check["name"] == "prefix_hit_error")
    assert check["passed"] is True


@pytest.mark.slow
def test_a_short_sweep_is_valid(up: Up) -> None:
    def has_all_rows(tree: dict[str, Any], run: Run) -> None:
        rows = run.requests()
        assert rows.num_rows == tree["requests"]["planned"]
        assert set(rows["status"].to_pylist()) <= {"ok", "missed"}

    up.until_valid(SearchCapacity, has_all_rows)


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_latencies_agree_with_a_plain_client(up: Up) -> None:
    """The same arrivals by our fleet and by aiohttp: the p90s agree in one of `TRIES` tries.

    The engine shares two cores with whatever else runs here, so that one try may meet another machine than
    the next.
    """
    ours, theirs, reason = [], [], ""
    for attempt in range(TRIES):
        words = (f"rate_qps={RATE_QPS}", f"duration_s={SECONDS:g}", f"run=ours-{attempt}")
        tree, _ = up.run(OfferLoad, *words)
        tries.refuse_other_reasons(tree)
        theirs.append(asyncio.run(plain_client(up.served.urls[0], load([*WORDS]))))
        ours += [tree] if tree["valid"] else []
        reason = tree["reason"]
        # A machine that others use is slow for a while: any of ours may be of the same time as any of theirs.
        if not all(disagreements(mine, other) for mine in ours for other in theirs):
            return
    assert ours, f"all {TRIES} tries are void: {reason}"
    raise AssertionError(f"never agreed in {TRIES} tries: {disagreements(ours[-1], theirs[-1])}")


def disagreements(tree: dict[str, Any], theirs: list[tuple[float, float]]) -> list[str]:
    """A line for each limit whose p90 lies beyond the other's p80 and p97 by more than a tenth."""
    apart = []
    for limit, values in zip(("ttft", "tpot"), 1e3 * np.transpose(theirs), strict=True):
        ours, (low, high) = tree["probe"]["limits"][limit]["ms"]["value"], np.quantile(values, [0.8, 0.97])
        if not 0.9 * low <= ours <= 1.1 * high:
            apart.append(f"{limit}: ours {ours:.1f}, aiohttp's p80 {low:.1f} and p97 {high:.1f} ms")
    return apart


async def plain_client(url: str, experiment: Experiment) -> list[tuple[float, float]]:
    """TTFT and TPOT in seconds of an open loop that knows nothing of ours but when and what to send."""
    end_ns = int(SECONDS * NS)
    drawn = Traffic(experiment.workload).draw(
        RATE_QPS, {"window": (0, end_ns)}, window_index=0, first_seq=0, seed=experiment.seed
    )
    prompts = Prompts(experiment.workload, experiment.model.served_name, experiment.model.vocab, salt=77)
    began_s = time.monotonic() + 0.5
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def one(seq: int, due_ns: int, prompt: int, output: int) -> tuple[float, float]:
            due_s = began_s + due_ns / NS
            await asyncio.sleep(due_s - time.monotonic())
            at_s, usage = await stream(client, url, prompts.body(seq, prompt, output))
            return at_s[0] - due_s, (at_s[-1] - at_s[0]) / (usage["completion_tokens"] - 1)

        columns = drawn.seq, drawn.due_ns, drawn.input_tokens, drawn.output_tokens
        asked_for = zip(*(column.tolist() for column in columns), strict=True)
        return list(await asyncio.gather(*(one(*each) for each in asked_for)))
