"""Clocks that run faster than the real one: what is told in-band, and what must not depend on the speed."""

import asyncio
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis import metrics, records
from conf import ConfigError, Experiment, load
from conf.schema import SimulatedEngine
from loadgen.arrivals import NS, Traffic
from loadgen.exchange import Exchange, StampedReader
from loadgen.health import Pulse
from loadgen.prompts import Prompts
from loadgen.recorder import Shard
from loadgen.rows import Clock, Planned, batch, plan_table
from loadgen.worker import Worker
from serve_apps.engine_model.engine import Engine, GenerateRequest
from serve_apps.openai_api import stamped
from tests import test_client
from tests.mock_server import END, Script, answer, event, head, token, usage
from tests.test_prefix import simulated
from tests.test_simulated import ARRIVALS, Service, planned, run

FAST = 5.0
MS = 1_000_000
REQUESTS = 6


def test_a_fast_engine_emits_the_same_tokens_at_the_same_times_of_its_own() -> None:
    async def story() -> tuple[float, list[list[float]]]:
        served, streams = Service(FAST), []
        begin_s = served.loop.time()
        for at_s, input_tokens, output_tokens in ARRIVALS:
            await asyncio.sleep(begin_s + at_s / FAST - served.loop.time())
            streams.append(served.engine.open(input_tokens, output_tokens))
        for stream, (_, _, output_tokens) in zip(streams, ARRIVALS, strict=True):
            await stream.more_than(output_tokens - 1)
        return served.loop.time() - begin_s, [stream.emitted_s for stream in streams]

    took_s, told = run(story())
    wanted = planned(ARRIVALS)
    for key, times in enumerate(told):
        assert times == pytest.approx(wanted[key], abs=1e-6)
    last_s = max(times[-1] for times in wanted.values())
    assert took_s == pytest.approx(last_s / FAST, abs=2e-3)


def test_a_fast_engine_is_late_by_its_own_steps() -> None:
    """A stall of 4 ms is less than half a step of 12 ms; of a fast engine's it is most of two."""

    async def story(time_scale: float) -> int:
        served = Service(time_scale)
        stream = served.engine.open(64, 100)
        await asyncio.sleep(0.04)
        served.loop.now_s += 0.004  # type: ignore[attr-defined]
        await stream.more_than(99)
        return served.engine.metrics().late_steps

    assert run(story(1.0)) == 0
    assert run(story(FAST)) > 0


@pytest.mark.parametrize("cut", [1000, 1, 7, 64])
def test_stamps_are_read_wherever_the_stream_is_cut(cut: int) -> None:
    plain = [
        b'data: {"id":"c","choices":[{"index":0,"text":"%s"}]}\n\n' % text for text in (b"a", b"bc", b"d")
    ]
    told = b"".join(stamped(part, 10**17 + k) for k, part in enumerate(plain)) + b"data: [DONE]\n\n"
    exchange = Exchange(0, 3)
    reader = StampedReader(exchange)
    for start in range(0, len(told), cut):
        reader.feed(told[start : start + cut])
    assert (exchange.events, exchange.done) == (3, True)
    assert (exchange.first_virtual_ns, exchange.last_virtual_ns) == (10**17, 10**17 + 2)


@pytest.mark.parametrize("stamp", [b"-5", b'"soon"', b"1.5", b"9" * 40, b"null"])
def test_a_stamp_that_is_none_is_not_believed_and_spoils_nothing(stamp: bytes) -> None:
    exchange = Exchange(0, 1)
    StampedReader(exchange).feed(b'data: {"virtual_ns":%s,"choices":[{"text":"a"}]}\n\n' % stamp)
    assert (exchange.events, exchange.first_virtual_ns, exchange.status) == (1, None, None)


def fast(body: dict[str, Any]) -> list[bytes | float | None]:
    """An answer of three tokens by a server whose clock runs five times as fast."""
    extra = f"x-time-scale: {FAST:g}\r\nx-accepted-virtual-ns: {7 * MS}\r\n"
    tokens = [event(b'{"virtual_ns":%d,"choices":[{"text":"a","finish_reason":"length"}]}' % at)
              for at in (50 * MS, 60 * MS, 80 * MS)]  # fmt: skip
    return [head(extra=extra), *tokens, usage(len(body["prompt"]), 3), END]


@pytest.mark.parametrize(
    ("script", "time_scale", "status"),
    [
        (fast, FAST, "ok"),
        (fast, 1.0, "http_error"),
        (answer, FAST, "http_error"),
        (lambda _: [head(extra="x-time-scale: soon\r\n"), token(), END], 1.0, "http_error"),
    ],
)
def test_a_server_with_another_clock_is_refused(script: Script, time_scale: float, status: str) -> None:
    (seen,) = test_client.run(script, time_scale=time_scale)
    assert seen.status == status
    assert (seen.error_kind == "time_scale") == (status != "ok")
    if seen.status == "ok":
        assert (seen.accepted_virtual_ns, seen.first_virtual_ns) == (7 * MS, 50 * MS)


def test_the_runs_clock_and_the_real_one_are_both_in_the_row() -> None:
    """Due at 10 s of a run five times as fast: 2 s after its beginning."""
    clock = Clock(epoch_ns=NS, wall_ns=1_700_000_000 * NS, scale=FAST)
    plan = Planned(3, 0, "window", 10 * NS, 5600, 2)
    seen = Exchange(
        3, 2, sent_ns=3 * NS + MS, first_token_ns=3 * NS + 20 * MS, last_token_ns=3 * NS + 30 * MS
    )
    seen.status, seen.end_ns, seen.events = "ok", 3 * NS + 31 * MS, 2
    seen.accepted_virtual_ns, seen.first_virtual_ns, seen.last_virtual_ns = 7 * MS, 77 * MS, 120 * MS
    seen.gaps_us.append(10_000)
    assert clock.run_ns(clock.monotonic_ns(plan.due_ns)) == plan.due_ns
    rows = batch([(plan, seen)], clock, 0, record_itl=True)
    (row,) = rows.to_pylist()
    offsets_ms = [row[f"{name}_offset_ns"] / MS for name in ("send", "first_token", "last_token", "end")]
    assert offsets_ms == [5, 100, 150, 155]
    assert (row["time_scale"], row["engine_first_token_ns"]) == (FAST, 70 * MS)
    assert row["engine_last_token_ns"] == 113 * MS
    assert row["itl_us"] == [50_000]
    assert row["scheduled_at"].timestamp() == 1_700_000_002
    table = pa.Table.from_batches([rows])
    assert metrics.ttft(table).tolist() == [70 + 30 / FAST]
    lost = records.lost(plan_table(Traffic(EXPERIMENT.workload).evenly(1, 10 * NS, NS, first_seq=0, seed=1)),
                        clock.wall_ns, FAST)  # fmt: skip
    assert lost["scheduled_at"].to_pylist()[0].timestamp() == 1_700_000_002


EXPERIMENT = load(
    [f"engine.time_scale={FAST}", "workload.input_tokens.mean=600", "workload.output_tokens.mean=20"]
)


def virtual_s(experiment: Experiment) -> tuple[float, float]:
    """Seconds to the first and to the last token of a lone request, on the virtual clock."""
    spec = experiment.engine
    assert isinstance(spec, SimulatedEngine)
    plain = Engine(spec, experiment.model, experiment.hardware, experiment.layout)
    times, now_s = [], 0.0
    plain.add(GenerateRequest(0, 600, 20), now_s)
    while (now_s := max(now_s, plain.ready_s())) != math.inf:
        if step := plain.step(now_s):
            now_s = step.end_s
            times += [now_s] * len(step.events)
    return times[0], times[-1]


async def measured(folder: Path) -> pa.Table:
    """Rows of requests one after the other, over HTTP."""
    prompts = Prompts(EXPERIMENT.workload, EXPERIMENT.model.served_name, EXPERIMENT.model.vocab, salt=1)
    shard = Shard(folder / "rows.arrow")
    async with simulated(EXPERIMENT) as url:
        worker = Worker(0, [url], prompts, shard, record_itl=True, time_scale=FAST, timeout_s=10.0)
        worker.start(time.monotonic_ns(), time.time_ns())
        traffic = Traffic(EXPERIMENT.workload)
        await worker.offer(traffic.closed(REQUESTS, 1, 0, dwell=0, first_seq=0, seed=1))
        ended = 0
        while ended < REQUESTS:
            ended += (await worker.observe()).ended.num_rows
            await asyncio.sleep(0.02)
        await worker.finish(10.0)
    return records.read_shard(shard.path).sort_by("seq")


def test_over_http_the_engines_own_times_are_those_of_the_virtual_clock(tmp_path: Path) -> None:
    rows = asyncio.run(measured(tmp_path))
    first_s, last_s = virtual_s(EXPERIMENT)
    assert rows["status"].to_pylist() == ["ok"] * REQUESTS
    assert metrics.numbers(rows, "engine_first_token_ns") == pytest.approx(first_s * NS, abs=10)
    assert metrics.numbers(rows, "engine_last_token_ns") == pytest.approx(last_s * NS, abs=10)
    path_ms = metrics.path(rows)
    assert np.all(path_ms > 0)
    assert metrics.ttft(rows) == pytest.approx(first_s * 1e3 + path_ms)
    due_ns, end_ns = metrics.numbers(rows, "due_ns"), metrics.numbers(rows, "end_offset_ns")
    assert np.all(end_ns >= last_s * NS), (
        "on the run's clock a request lasts as long as in the engine, and more"
    )
    assert np.all(np.diff(due_ns) >= end_ns[:-1]), (
        "the next one is due, in the run's time, when one has ended"
    )


def test_a_beat_covers_seconds_of_the_run() -> None:
    began_ns = time.monotonic_ns()
    pulse = Pulse(0, Clock(began_ns, 0, FAST))
    pulse.sent(2 * MS)
    time.sleep(0.02)
    beat = pulse.beat()
    assert beat["clock_ns"] / FAST == pytest.approx(beat["at"] * 1000, abs=1001), (
        "the wall clock knows no speed"
    )
    assert beat["span_s"] >= 0.02 * FAST
    assert beat["lag_max_ms"] == 2, "how late a send was is real time"


@pytest.mark.parametrize(
    "words",
    [["engine.time_scale=11"], ["engine.time_scale=5", "engine=external", "target.urls=[http://h:1]"]],
)
def test_only_a_simulated_clock_runs_faster_and_not_without_end(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"engine\.time_scale"):
        load(words)
