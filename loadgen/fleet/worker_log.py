"""Rows of a worker until they are written and reported: its completed requests, and its own health."""

import contextlib
import gc
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.rows import records
from analysis.rows.parquet import BoundedWords
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.http_client import ClientPlan
from loadgen.fleet.rows import Clock, GapRecord, Words, batch
from loadgen.traffic.schedule import NS, Planned

FULL_DISK_S = 5.0
"""A stream that cannot be written for so long ends the worker; until then its rows are kept.

Seconds count from the first write that failed. On a slow clock, whose writes are rarer, they are the run's.
"""


SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Nanoseconds this thread ran and waited for a core; Linux only."""


class RequestLog:
    """Rows of a worker: each completed request once for the disk and once for the driver."""

    def __init__(self, client_id: int, plan: ClientPlan, requests: ArrowStream, health: ArrowStream) -> None:
        self._client_id = client_id
        self._requests, self._health = requests, health
        experiment = plan.experiment
        self._gaps = GapRecord.from_bounds(experiment.slo, experiment.fleet.record_itl)
        self._patience_s = FULL_DISK_S / min(1.0, experiment.time_scale)
        self._full_since: float | None = None
        self._words: Words = defaultdict(BoundedWords)
        self._completed: list[Exchange] = []
        self._unreported: list[pa.RecordBatch] = []
        self._samples: list[dict[str, Any]] = []
        self._reported = 0, 0
        # The first conversions import what pyarrow loads lazily: now, not in the middle of a run.
        first = Exchange(Planned(0, 0, "warmup", 0, 1, 1))
        batch([first], Clock(0, 0), client_id, self._gaps, self._words)
        pa.RecordBatch.from_pylist([{"at": 0}], schema=records.CLIENTS)

    def start(self, clock: Clock) -> None:
        """Set the run's clock, on which rows count their times."""
        self._clock = clock

    def add(self, exchange: Exchange) -> None:
        """Keep a request that has ended."""
        self._completed.append(exchange)

    def rows(self, exchanges: list[Exchange]) -> pa.RecordBatch:
        """Rows of schema `SHARD` for requests, ended or in flight, without their gaps."""
        return batch(exchanges, self._clock, self._client_id, self._gaps.figures, self._words)

    def _roll(self) -> None:
        """Turn what ended since the last call into rows, once for the disk and once for the driver."""
        completed, self._completed = self._completed, []
        if completed:
            rows = batch(completed, self._clock, self._client_id, self._gaps, self._words)
            self._requests.append(rows)
            self._unreported.append(rows)

    def take(self, received: bool = True) -> tuple[list[pa.RecordBatch], list[dict[str, Any]]]:
        """Rows and health samples since the last call, and those of that call unless they were `received`."""
        self._roll()
        if received:
            rows, samples = self._reported
            del self._unreported[:rows], self._samples[:samples]
        self._reported = len(self._unreported), len(self._samples)
        return list(self._unreported), list(self._samples)

    def write(self, sample: dict[str, Any]) -> None:
        """Add a health sample and write what is kept; raises OSError of a disk that stays full."""
        self._roll()
        self._samples.append(sample)
        self._health.append(pa.RecordBatch.from_pylist([sample], schema=records.CLIENTS))
        try:
            self._requests.flush()
            self._health.flush()
            self._full_since = None
        except OSError:
            now_s = time.monotonic()
            if self._full_since is None:
                self._full_since = now_s
            elif now_s > self._full_since + self._patience_s:
                raise

    def close(self) -> None:
        """Write what is kept and close every stream, also when one cannot be written."""
        self._roll()
        with contextlib.ExitStack() as stack:
            stack.callback(self._requests.close)
            stack.callback(self._health.close)


def reported(batches: list[pa.RecordBatch]) -> pa.Table:
    """Rows of schema `PROGRESS`, without the gaps: those are many, and only for the disk."""
    rows = pa.Table.from_batches(batches, schema=records.SHARD)
    return rows.select(records.PROGRESS.names).combine_chunks()


def _schedstat() -> tuple[int, int]:
    """Nanoseconds this thread ran and waited so far; 0 if the kernel does not report it."""
    try:
        ran_ns, waited_ns, _slices = map(int, SCHEDSTAT.read_text().split())
    except (OSError, ValueError):
        return 0, 0
    return ran_ns, waited_ns


@dataclass(slots=True)
class Second:
    """Counts since `since_ns`: lags of sends, requests that were not sent, reads and events of answers.

    `cpu_ns` and `ran` (this thread ran and waited, ns) are the readings then.
    """

    since_ns: int = field(default_factory=time.monotonic_ns)
    cpu_ns: int = field(default_factory=time.process_time_ns)
    ran: tuple[int, int] = field(default_factory=_schedstat)
    lags_ns: list[int] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    missed: int = 0
    reads: int = 0
    events: int = 0
    stall_ns: int = 0
    gc_pauses: int = 0
    gc_ns: int = 0


class HealthSampler:
    """Counts what happens in a `second`; `sample` closes it. Call it from the loop's own thread."""

    def __init__(self, client_id: int, clock: Clock) -> None:
        self._client_id = client_id
        self._clock = clock
        self.second = Second()
        self._gc_began_ns = 0

    def woke(self, late_ns: int, in_flight: int) -> None:
        """Count a regular wake-up of the loop that came `late_ns` late, with `in_flight` requests open."""
        self.second.stall_ns = max(self.second.stall_ns, late_ns)
        self.second.in_flight.append(in_flight)

    @contextmanager
    def watch_gc(self) -> Iterator[None]:
        """Time the garbage collector's pauses while the block lasts."""
        gc.callbacks.append(self._on_gc)
        try:
            yield
        finally:
            gc.callbacks.remove(self._on_gc)

    def sample(self) -> dict[str, Any]:
        """The row of the time since the last sample."""
        second, self.second = self.second, Second()
        span_ns, clock = max(1, self.second.since_ns - second.since_ns), self._clock
        run_ns, queued_ns = (
            after - before for before, after in zip(second.ran, self.second.ran, strict=True)
        )
        lags_ms = np.quantile(second.lags_ns, [0.5, 0.99, 1.0]) / 1e6 if second.lags_ns else [None] * 3
        return {
            "client_id": self._client_id,
            "at": (clock.wall_ns + self.second.since_ns - clock.epoch_ns) // 1000,
            "clock_ns": clock.run_ns(self.second.since_ns),
            "span_s": span_ns * clock.scale / NS,
            "sends": len(second.lags_ns),
            "missed": second.missed,
            "in_flight": second.in_flight[-1] if second.in_flight else None,
            "in_flight_mean": float(np.mean(second.in_flight)) if second.in_flight else None,
            **dict(zip(("lag_p50_ms", "lag_p99_ms", "lag_max_ms"), lags_ms, strict=True)),
            "cpu_share": (self.second.cpu_ns - second.cpu_ns) / span_ns,
            "run_share": run_ns / (run_ns + queued_ns) if run_ns + queued_ns > 0 else None,
            "stall_ms": second.stall_ns / 1e6,
            "gc_pauses": second.gc_pauses,
            "gc_ms": second.gc_ns / 1e6,
            "reads": second.reads,
            "events": second.events,
        }

    def _on_gc(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began_ns = time.monotonic_ns()
        elif self._gc_began_ns:
            self.second.gc_pauses += 1
            self.second.gc_ns += time.monotonic_ns() - self._gc_began_ns
