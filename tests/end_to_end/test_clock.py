"""Clocks faster or slower than the real one: loadgen.fleet and serve_apps.simulated tell them in-band."""

import asyncio
import itertools
import time
from collections import defaultdict
from datetime import UTC
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis import load_run
from analysis.rows import metrics, records
from analysis.rows.parquet import BoundedWords
from conf import Experiment, load
from loadgen.drive import programs
from loadgen.drive.driver import Driver
from loadgen.drive.loss_recovery import TargetLost
from loadgen.drive.prepared_load import load_prepared
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.process import ClockOffset, whose_clock
from loadgen.fleet.rows import Clock, GapRecord, batch, plan_table
from loadgen.fleet.target import FleetError
from loadgen.fleet.worker_log import HealthSampler
from loadgen.prompts.bodies import Prompts
from loadgen.run.lifecycle import RunLifecycle
from loadgen.run.run_folder import RunFolder
from loadgen.search.window_plan import Start, WindowPlan
from loadgen.traffic.schedule import NS, Planned
from loadgen.traffic.traffic import Traffic
from serve_apps.simulated.openai_answers import ApiRequest
from tests.support.machine.patience import PATIENCE_S
from tests.support.servers import mock_exchanges
from tests.support.servers.mock_server import END, Script, answer, head, token, usage
from tests.support.servers.workers import played, started
from tests.support.virtual.simulated_prefix import simulated
from tests.support.virtual.simulated_service import ARRIVALS, Service, planned, run
from tests.support.virtual.virtual_drivers import Altering, plan, virtual
from tests.support.virtual.virtual_fleet import HoldRate, VirtualFleet, site

FAST, SLOW = 5.0, 0.5
MS = 1_000_000
REQUESTS = 2


def test_a_fast_engine_emits_the_same_tokens_at_the_same_times_of_its_own() -> None:
    async def story() -> tuple[float, list[list[float]]]:
        served, streams = Service(FAST), []
        begin_s = served.loop.time()
        for at_s, input_tokens, output_tokens in ARRIVALS:
            await asyncio.sleep(begin_s + at_s / FAST - served.loop.time())
            streams.append(served.engine.hand(ApiRequest(False, input_tokens, output_tokens, True)))
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
    """A step is late by more than half of it: a stall of 0.4 steps takes two of a fast engine."""
    *_, before_s, last_s = planned([(0.0, 64, 4)])[0]
    step_s = last_s - before_s

    async def story(time_scale: float) -> int:
        served = Service(time_scale)
        stream = served.engine.hand(ApiRequest(False, 64, 100, True))
        await asyncio.sleep(0.04)
        served.loop.now_s += 0.4 * step_s  # type: ignore[attr-defined]
        await stream.more_than(99)
        return served.engine.metrics()["late_steps"]

    assert run(story(1.0)) == 0
    assert run(story(FAST)) > 0


def fast(body: dict[str, Any]) -> list[bytes | float | None]:
    """An answer of three tokens by a server whose clock runs five times as fast."""
    own = {"maxqps": {"steps": 3, "late_steps": 0, "first_token_us": 43_000, "last_token_us": 73_000}}
    tokens = [*[token()] * 2, token(finish="length")]
    return [head(extra=f"x-time-scale: {FAST:g}\r\n"), *tokens, usage(len(body["prompt"]), 3, **own), END]


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
    (seen,) = mock_exchanges.run(script, time_scale=time_scale)
    assert seen.status == status
    assert (seen.error_kind == "time_scale") == (status != "ok")
    if seen.status != "ok":
        assert seen.error is not None and seen.error.endswith(
            f"; start that server with engine.time_scale={time_scale:g}"
        )
    if seen.status == "ok":
        assert seen.engine is not None and seen.engine["first_token_us"] == 43_000


def test_the_runs_clock_and_the_real_one_are_both_in_the_row() -> None:
    """Due at 10 s of a run five times as fast: 2 s after its beginning."""
    clock = Clock(epoch_ns=NS, wall_ns=1_700_000_000 * NS, scale=FAST)
    plan = Planned(3, 0, "window", 10 * NS, 5600, 2)
    seen = Exchange(
        plan, sent_ns=3 * NS + MS, first_token_ns=3 * NS + 20 * MS, last_token_ns=3 * NS + 30 * MS
    )
    seen.status, seen.end_ns, seen.text.events = "ok", 3 * NS + 31 * MS, 2
    seen.engine = {"first_token_us": 70_000, "last_token_us": 113_000}
    seen.gaps_us.append(10_000)
    assert clock.run_ns(clock.monotonic_ns(plan.due_ns)) == plan.due_ns
    rows = batch([seen], clock, 0, gaps=GapRecord(), words=defaultdict(BoundedWords))
    (row,) = rows.to_pylist()
    offsets_ms = [row[f"{name}_offset_ns"] / MS for name in ("send", "first_token", "last_token", "end")]
    assert offsets_ms == [5, 100, 150, 155]
    assert (row["time_scale"], row["engine_first_token_ns"]) == (FAST, 70 * MS)
    assert row["engine_last_token_ns"] == 113 * MS
    assert row["itl_us"] == [50_000]
    assert row["scheduled_at"].replace(tzinfo=UTC).timestamp() == 1_700_000_002
    table = pa.Table.from_batches([rows])
    assert metrics.ttft(table).tolist() == [70 + 30 / FAST]
    lost = records.lost(plan_table(Traffic(EXPERIMENT.workload).evenly(1, 10 * NS, NS, first_seq=0, seed=1)),
                        clock.wall_ns, FAST)  # fmt: skip
    assert lost["scheduled_at"].to_pylist()[0] == row["scheduled_at"]


MINUTE_NS = 60 * NS


class Elsewhere:
    """A clock on another host, `ahead_ns` ahead; each reading is `ways_ns` on its way there and back."""

    def __init__(self, ahead_ns: int, ways_ns: list[tuple[int, int]], whose: str = "another boot") -> None:
        self.ahead_ns, self.whose = ahead_ns, whose
        self.now_ns, self._ways = 5 * MINUTE_NS, itertools.cycle(ways_ns)

    def monotonic_ns(self) -> int:
        return self.now_ns

    def read(self) -> tuple[int, str]:
        there_ns, back_ns = next(self._ways)
        self.now_ns += there_ns
        reading = self.now_ns + self.ahead_ns, self.whose
        self.now_ns += back_ns
        return reading


def measured_offset(monkeypatch: pytest.MonkeyPatch, there: Elsewhere) -> ClockOffset:
    monkeypatch.setattr("loadgen.fleet.fleet.time.monotonic_ns", there.monotonic_ns)
    return ClockOffset.measured(there.read)


@pytest.mark.parametrize("ahead_ns", [-3 * MINUTE_NS, 0, 2 * NS, 10**15])
def test_another_hosts_clock_is_known_by_the_shortest_round_trip(
    monkeypatch: pytest.MonkeyPatch, ahead_ns: int
) -> None:
    result = measured_offset(monkeypatch, Elsewhere(ahead_ns, [(9 * MS, MS), (80_000, 60_000), (0, 40 * MS)]))
    assert result.doubt_ns <= 70_001
    assert abs(result.offset_ns - ahead_ns) <= result.doubt_ns


def test_a_clock_that_is_far_away_refuses_a_common_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FleetError, match="known to within 60 ms only; run the driver nearer"):
        measured_offset(monkeypatch, Elsewhere(0, [(60 * MS, 60 * MS)]))


@pytest.mark.parametrize(
    ("ahead_ns", "ways_ns", "offset"),
    [
        (0, (70 * MS, 200 * MS), ClockOffset(0, 0)),  # one host has one clock, however busy it is
        (2 * NS, (MS, MS), ClockOffset(2 * NS, MS + 1)),  # a copied machine has the same boot, not the clock
    ],
)
def test_two_clocks_of_one_name(
    monkeypatch: pytest.MonkeyPatch, ahead_ns: int, ways_ns: tuple[int, int], offset: ClockOffset
) -> None:
    assert measured_offset(monkeypatch, Elsewhere(ahead_ns, [ways_ns], whose_clock())) == offset
    assert len(whose_clock()) > 36, "the boot and the time namespace"


SHORT = ["workload.input_tokens.mean=600", "workload.output_tokens.mean=20"]
EXPERIMENT = load([f"engine.time_scale={FAST}", *SHORT])


async def measured(folder: Path, experiment: Experiment) -> pa.Table:
    """Rows of requests one after the other, over HTTP."""
    prompts = Prompts(experiment.workload, experiment.model.served_name, experiment.model.vocab, salt=1)
    shard, scale = ArrowStream(folder / "rows.arrow"), experiment.time_scale
    schedule = Traffic(experiment.workload).closed(REQUESTS, 1, 0, window_index=0, first_seq=0, seed=1)
    async with simulated(experiment) as url:
        worker = started([url], prompts, shard, time_scale=scale, timeout_s=PATIENCE_S * scale)
        await played(worker, schedule)
        await worker.finish(PATIENCE_S)
    return records.read_shard(shard.path).sort_by("seq")


@pytest.mark.parametrize(
    "scale", [FAST, *(pytest.param(each, marks=pytest.mark.slow) for each in (SLOW, 1.0))]
)
def test_over_http_the_engines_own_times_are_those_of_the_virtual_clock(tmp_path: Path, scale: float) -> None:
    experiment = load([f"engine.time_scale={scale}", *SHORT])
    rows = asyncio.run(measured(tmp_path, experiment))
    first_s, *_, last_s = planned([(0.0, 600, 20)])[0]
    assert rows["status"].to_pylist() == ["ok"] * REQUESTS
    assert metrics.numbers(rows, "engine_first_token_ns") == pytest.approx(first_s * NS, abs=1000)
    assert metrics.numbers(rows, "engine_last_token_ns") == pytest.approx(last_s * NS, abs=1000)
    path_ms = metrics.path(rows)
    assert np.all(path_ms > 0)
    # Both ends are rounded to a microsecond.
    assert metrics.ttft(rows) == pytest.approx(first_s * 1e3 + path_ms, abs=1e-3)
    due_ns, end_ns = metrics.numbers(rows, "due_ns"), metrics.numbers(rows, "end_offset_ns")
    assert np.all(end_ns >= last_s * NS), "a request lasts at least as long as in the engine"
    assert np.all(np.diff(due_ns) >= end_ns[:-1]), "the next one is due when one has ended"


def test_a_beat_covers_seconds_of_the_run() -> None:
    began_ns = time.monotonic_ns()
    sampler = HealthSampler(0, Clock(began_ns, 0, FAST))
    sampler.second.lags_ns.append(2 * MS)
    time.sleep(0.02)
    beat = sampler.sample()
    # The wall clock knows no speed.
    assert beat["clock_ns"] / FAST == pytest.approx(beat["at"] * 1000, abs=1001)
    assert beat["span_s"] >= 0.02 * FAST
    assert beat["lag_max_ms"] == 2, "how late a send was is real time"


FAST_WORD = f"engine.time_scale={FAST}"


def test_a_server_on_another_clock_ends_the_run_in_its_warm_up() -> None:
    """Its tokens come, so it is alive; nothing that it says of latency would mean anything."""
    experiment = load([])
    why = "the server's clock runs at 5, the load's at 1; start that server with engine.time_scale=1"
    target = Altering(experiment, status="http_error", error_kind="time_scale", error=why)
    driver = Driver(target, plan(experiment, Start(8.0), warmup_requests=4), lambda *_, **__: None)
    with pytest.raises(TargetLost, match=why):
        programs.offer_rate(driver, 3.0, 60, 15)
    assert not driver.windows.outcomes


def test_lead_and_bridge_are_real_time() -> None:
    """On a clock of 5 a schedule is due 1 s of the run ahead, and deciding between windows may take 5 s."""
    experiment = load([])
    ahead_s, gaps_s = [], []
    for scale in (1.0, FAST):
        target = virtual(experiment)
        driver = Driver(target, plan(experiment, Start(8.0), time_scale=scale), lambda *_, **__: None)
        ahead_s.append(driver.feed.next_start_ns() / NS)
        for index in range(2):
            load_prepared(driver, WindowPlan(index, "window", 2.0, 0.0, 10.0, False, ""), may_abort=False)
        first, second = (outcome.counts for outcome in driver.windows.outcomes)
        gaps_s.append((second.window_start_ns - first.window_end_ns) / NS)
    assert (ahead_s, gaps_s) == ([0.2, 1.0], [1.0, 5.0])


def test_the_manifest_says_which_clock_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.run.lifecycle.LoadFleet", VirtualFleet)
    experiment = load([FAST_WORD, "engine.block_size=128", "fleet.warmup_requests=4"])
    folder = RunFolder.create(tmp_path, "one")
    plans = []

    class Seen(HoldRate):
        def load(self, driver: Driver) -> None:
            plans.append(driver.plan)
            super().load(driver)

    job = Seen(experiment, 3.0, 60, 15)
    filled = RunLifecycle(job, folder, site(Start(8.0)), lambda *_, **__: None)
    assert filled.measure().exit_code == 0
    assert load_run(folder.path).manifest["clock"] == {"time_scale": FAST, "zero_wall_ns": 0}
    assert (plans[0].time_scale, plans[0].block_tokens) == (FAST, 128)
