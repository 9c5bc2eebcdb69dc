"""Keeps completed requests and health samples of one worker until they are written and reported."""

import contextlib
import time
from typing import Any

import pyarrow as pa

from analysis.rows import records, time_series
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.client_plan import ClientPlan
from loadgen.fleet.rows import Attempt, Clock, Planned, ServerWords, batch
from loadgen.fleet.sse import Exchange

FULL_DISK_S = 5.0
"""A stream that cannot be written for so long ends the worker; until then its rows are kept.

Seconds count from the first write that failed. On a slow clock, whose writes are rarer, they are the run's.
"""


class RequestLog:
    """Rows of a worker: each completed request once for the disk and once for the driver."""

    def __init__(
        self,
        client_id: int,
        plan: ClientPlan,
        requests: ArrowStream,
        health: ArrowStream | None,
    ) -> None:
        self._client_id = client_id
        self._requests, self._health = requests, health
        self._gaps = plan.gaps
        self._patience_s = FULL_DISK_S / min(1.0, plan.time_scale)
        self._full_since: float | None = None
        self._words = ServerWords()
        self._completed: list[Attempt] = []
        self._unreported: list[pa.RecordBatch] = []
        self._samples: list[dict[str, Any]] = []
        self._reported = 0, 0
        # The first conversions import what pyarrow loads lazily: now, not in the middle of a run.
        first = Planned(0, 0, "warmup", 0, 1, 1), Exchange(0, 1)
        batch([first], Clock(0, 0), client_id, plan.gaps, ServerWords())
        pa.RecordBatch.from_pylist([{"at": 0}], schema=time_series.CLIENTS)

    def start(self, clock: Clock) -> None:
        """Set the run's clock, on which rows count their times."""
        self._clock = clock

    def add(self, attempt: Attempt) -> None:
        """Keep a request that has ended."""
        self._completed.append(attempt)

    def rows(self, attempts: list[Attempt]) -> pa.RecordBatch:
        """Rows of schema `SHARD` for requests, ended or in flight, without their gaps."""
        return batch(attempts, self._clock, self._client_id, self._gaps.figures, self._words)

    def roll(self) -> None:
        """Turn what ended since the last call into rows, once for the disk and once for the driver."""
        completed, self._completed = self._completed, []
        if completed:
            rows = batch(completed, self._clock, self._client_id, self._gaps, self._words)
            self._requests.append(rows)
            self._unreported.append(rows)

    def take(self, received: bool = True) -> tuple[list[pa.RecordBatch], list[dict[str, Any]]]:
        """Rows and health samples since the last call, and those of that call unless they were `received`."""
        self.roll()
        if received:
            rows, samples = self._reported
            del self._unreported[:rows], self._samples[:samples]
        self._reported = len(self._unreported), len(self._samples)
        return list(self._unreported), list(self._samples)

    def write(self, sample: dict[str, Any]) -> None:
        """Add a health sample and write what is kept; raises OSError of a disk that stays full."""
        self.roll()
        self._samples.append(sample)
        if self._health is not None:
            self._health.append(pa.RecordBatch.from_pylist([sample], schema=time_series.CLIENTS))
        try:
            for stream in self._streams():
                stream.flush()
            self._full_since = None
        except OSError:
            now_s = time.monotonic()
            if self._full_since is None:
                self._full_since = now_s
            elif now_s > self._full_since + self._patience_s:
                raise

    def close(self) -> None:
        """Write what is kept and close every stream, also when one cannot be written."""
        self.roll()
        with contextlib.ExitStack() as stack:
            for stream in self._streams():
                stack.callback(stream.close)

    def _streams(self) -> list[ArrowStream]:
        return [self._requests] if self._health is None else [self._requests, self._health]


def reported(batches: list[pa.RecordBatch]) -> pa.Table:
    """Rows of schema `PROGRESS`, without the gaps: those are many, and only for the disk."""
    rows = pa.Table.from_batches(batches, schema=records.SHARD)
    return rows.select(records.PROGRESS.names).combine_chunks()
