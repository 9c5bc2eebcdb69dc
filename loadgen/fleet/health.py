"""Samples a load actor's own health once a second, to prove or disprove that it kept up.

Rows are of schema `series.CLIENTS`.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.fleet.rows import Clock
from loadgen.traffic.schedule import NS

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Nanoseconds this thread ran and waited for a core; Linux only."""


@dataclass(slots=True)
class _Second:
    """Counts since `since_ns`; `cpu_ns` and `ran` are the readings then."""

    since_ns: int
    cpu_ns: int
    ran: tuple[int, int] | None
    lags_ns: list[int] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    missed: int = 0
    reads: int = 0
    events: int = 0
    stall_ns: int = 0
    gc_pauses: int = 0
    gc_ns: int = 0


class HealthSampler:
    """Counts what happens in a second; `sample` closes it. Call it from the loop's own thread."""

    def __init__(self, client_id: int, clock: Clock) -> None:
        self._client_id = client_id
        self._clock = clock
        self._second = _second()
        self._gc_began_ns = 0

    def sent(self, lag_ns: int) -> None:
        """Count a request that was sent `lag_ns` after its due time."""
        self._second.lags_ns.append(lag_ns)

    def missed(self) -> None:
        """Count a request that was not sent at all."""
        self._second.missed += 1

    def ended(self, reads: int, events: int) -> None:
        """Count an answer that took so many reads for so many events."""
        self._second.reads += reads
        self._second.events += events

    def woke(self, late_ns: int, in_flight: int) -> None:
        """Count a regular wake-up of the loop that came `late_ns` late, with `in_flight` requests open."""
        self._second.stall_ns = max(self._second.stall_ns, late_ns)
        self._second.in_flight.append(in_flight)

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
        second, self._second = self._second, _second()
        span_ns = max(1, self._second.since_ns - second.since_ns)
        clock = self._clock
        lags_ms = np.quantile(second.lags_ns, [0.5, 0.99, 1.0]) / 1e6 if second.lags_ns else [None] * 3
        return {
            "client_id": self._client_id,
            "at": (clock.wall_ns + self._second.since_ns - clock.epoch_ns) // 1000,
            "clock_ns": clock.run_ns(self._second.since_ns),
            "span_s": span_ns * clock.scale / NS,
            "sends": len(second.lags_ns),
            "missed": second.missed,
            "in_flight": second.in_flight[-1] if second.in_flight else None,
            "in_flight_mean": float(np.mean(second.in_flight)) if second.in_flight else None,
            **dict(zip(("lag_p50_ms", "lag_p99_ms", "lag_max_ms"), lags_ms, strict=True)),
            "cpu_share": (self._second.cpu_ns - second.cpu_ns) / span_ns,
            "run_share": _run_share(second.ran, self._second.ran),
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
            self._second.gc_pauses += 1
            self._second.gc_ns += time.monotonic_ns() - self._gc_began_ns


def _second() -> _Second:
    return _Second(time.monotonic_ns(), time.process_time_ns(), _schedstat())


def _schedstat() -> tuple[int, int] | None:
    """Nanoseconds this thread ran and waited so far; None if the kernel does not report it."""
    try:
        ran_ns, waited_ns, _slices = map(int, SCHEDSTAT.read_text().split())
    except (OSError, ValueError):
        return None
    return ran_ns, waited_ns


def _run_share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Share run / (run + queued) of this thread's time; None if unknown."""
    if before is None or after is None:
        return None
    ran, waited = after[0] - before[0], after[1] - before[1]
    return ran / (ran + waited) if ran + waited > 0 else None
