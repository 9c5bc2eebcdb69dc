"""loadgen/fleet/worker_log.py: no row is lost with a report, and a second of a load actor's own health."""

import gc
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analysis.capacity.window_counts import NS, Window
from analysis.rows.time_series import CLIENTS
from loadgen.drive.load_feed import health_of
from loadgen.fleet import worker_log
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.rows import Clock, Planned
from loadgen.fleet.worker_log import HealthSampler, RequestLog
from tests.support.servers.plans import client_plan


def reported(log: RequestLog, received: bool) -> list[int]:
    rows, _ = log.take(received)
    return [seq for batch in rows for seq in batch["seq"].to_pylist()]


def test_a_report_is_repeated_until_it_was_received(tmp_path: Path) -> None:
    log = RequestLog(0, client_plan([]), ArrowStream(tmp_path / "shard.arrow"), None)
    log.start(Clock(0, 0))

    def end(seq: int) -> None:
        exchange = Exchange(seq, 1)
        exchange.end_ns = 1
        log.add((Planned(seq, 0, "window", 0, 1, 1), exchange))

    end(0)
    assert reported(log, received=True) == [0]
    end(1)
    assert reported(log, received=False) == [0, 1]
    assert reported(log, received=False) == [0, 1]
    end(2)
    assert reported(log, received=True) == [2]
    assert reported(log, received=True) == []


def test_a_second_counts_what_happened_in_it_and_no_more() -> None:
    sampler = HealthSampler(3, Clock(time.monotonic_ns(), 1_000_000_000))
    for lag_ns in (1_000_000, 3_000_000, 2_000_000):
        sampler.sent(lag_ns)
    sampler.missed()
    sampler.ended(reads=10, events=12)
    for late_ns, in_flight in ((5_000_000, 4), (-1_000, 2)):
        sampler.woke(late_ns, in_flight)
    first, second = sampler.sample(), sampler.sample()
    counted = {name: first[name] for name in ("client_id", "sends", "missed", "in_flight", "reads", "events")}
    assert counted == {"client_id": 3, "sends": 3, "missed": 1, "in_flight": 2, "reads": 10, "events": 12}
    assert (first["lag_p50_ms"], first["lag_max_ms"], first["stall_ms"]) == (2.0, 3.0, 5.0)
    assert first["in_flight_mean"] == 3.0 and 0 <= first["cpu_share"] < 2
    assert first["at"] == (1_000_000_000 + first["clock_ns"]) // 1000
    assert (second["sends"], second["lag_p99_ms"], second["in_flight"]) == (0, None, None)
    assert pa.Table.from_pylist([first, second], schema=CLIENTS).num_rows == 2


@pytest.mark.slow
def test_pauses_of_the_garbage_collector_are_seen_while_watched() -> None:
    sampler = HealthSampler(0, Clock(0, 0))
    with sampler.watch_gc():
        gc.collect()
    gc.collect()
    row = sampler.sample()
    assert row["gc_pauses"] == 1 and row["gc_ms"] > 0


@pytest.mark.parametrize("text", [None, "", "12 34", "a b c"])
def test_a_kernel_that_does_not_tell_is_unknown(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    path = tmp_path / "schedstat"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(worker_log, "SCHEDSTAT", path)
    assert HealthSampler(0, Clock(0, 0)).sample()["run_share"] is None


def test_the_share_of_the_wanted_core(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "schedstat"
    monkeypatch.setattr(worker_log, "SCHEDSTAT", path)
    path.write_text("100 50 7")
    sampler = HealthSampler(0, Clock(0, 0))
    path.write_text("400 150 9")
    assert sampler.sample()["run_share"] == 300 / 400


WINDOW = Window(0, "window", 1.0, 1, 0, 10 * NS, 30 * NS, 30 * NS)


def beat(client_id: int, second: float, **figures: Any) -> dict[str, Any]:
    row = {"cpu_share": 0.2, "run_share": 0.9, "stall_ms": 1.0, "in_flight_mean": 5.0, "span_s": 1.0}
    return {"client_id": client_id, "clock_ns": int(second * NS), **row, **figures}


def test_a_window_has_the_seconds_that_lie_in_it() -> None:
    calm = [beat(client, second) for client in (0, 1) for second in range(11, 31)]
    beats = [beat(0, 5, cpu_share=1.0, stall_ms=900.0), beat(1, 33, stall_ms=900.0), *calm]
    beats[2] |= {"stall_ms": 40.0, "cpu_share": 0.6}
    seen = health_of(beats, WINDOW)
    assert seen.health["client-00"] == pytest.approx({"cpu_share": 0.22, "run_share": 0.9, "stall_ms": 40.0})
    assert seen.health["client-01"]["stall_ms"] == 1.0
    assert seen.in_flight_mean == pytest.approx(10.0)


def test_what_was_not_seen_of_a_window_is_unknown() -> None:
    assert health_of([], WINDOW).in_flight_mean is None and health_of([], WINDOW).health is None
    half = [beat(0, second, run_share=None) for second in range(11, 21)]
    seen = health_of(half, WINDOW, ["load actor 1 (killed)"])
    assert seen.in_flight_mean is None, "half of the seconds say nothing of the mean"
    assert seen.health == {"client-00": pytest.approx({"cpu_share": 0.2, "stall_ms": 1.0})}
    assert seen.lost_actors == ("load actor 1 (killed)",)
