"""Counts of one dwell: how many requests of a window were over each limit, under how much work.

Knows request rows, the bounds and the workload's means; knows no posterior and no search.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis import metrics, records
from analysis.quantiles import quantile
from conf.schema import Slo, Workload

NS = 1_000_000_000
BLOCK_S = 5
PACE_TOKENS = 15
"""Output tokens from which the pace of an unfinished answer is believed (the method, 4.2 step 4)."""
OUTPUT_WORK = 2.0
"""Work of an output token in prompt tokens (the method, 4.2 step 5)."""
ABORTED_WEIGHT = 0.5
"""The method says 0.3; on its own bench S1 that covers .89 (200 runs), 0.5 covers .94."""

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """A segment of the schedule with its measured window; ns count from the start of the run's clock.

    `rate_qps` is the offered rate of the whole service of `nodes` nodes. `window_end_ns` is where the
    window ended, before `planned_end_ns` if it was aborted. A ramp step is a window too. `concurrency` is
    that of a closed loop, whose rate is what came of it; 0 is an open one.
    """

    index: int
    kind: Literal["ramp", "dwell"]
    rate_qps: float
    nodes: int
    start_ns: int
    window_start_ns: int
    window_end_ns: int
    planned_end_ns: int
    aborted: bool = False
    concurrency: int = 0

    @property
    def seconds(self) -> float:
        """Length of the window, as far as it went."""
        return (self.window_end_ns - self.window_start_ns) / NS


@dataclass(frozen=True, slots=True)
class LimitCount:
    """Requests `over` one limit among those `determined`, whole and per 5 s block of due time."""

    over: int
    determined: int
    block_over: tuple[int, ...]
    block_determined: tuple[int, ...]

    @property
    def share(self) -> float | None:
        """Over of determined; None when nothing is determined."""
        return self.over / self.determined if self.determined else None


@dataclass(frozen=True, slots=True)
class Dwell(Window):
    """A window with its counts so far. `weight` 0 excludes it (void), 0.5 is an aborted one.

    `log_work` is x = ln(sum of work / seconds / nodes), in units of the workload's mean request, -inf
    without requests; `log_work_var` is its variance s2 (the method, 4.2 step 5).
    """

    weight: float = 1.0
    requests: int = 0
    completed: int = 0
    failed: int = 0
    pending: int = 0
    waiting_at_start: int = 0
    median_e2e_s: float | None = None
    log_work: float = -math.inf
    log_work_var: float = 0.0
    ttft: LimitCount = LimitCount(0, 0, (), ())
    tpot: LimitCount = LimitCount(0, 0, (), ())


def in_window(requests: pa.Table, window: Window) -> pa.Table:
    """The rows of the window: those of its segment that were due in it, but for what was retracted."""
    due, segment = metrics.numbers(requests, "due_ns"), metrics.numbers(requests, "dwell")
    inside = (due >= window.window_start_ns) & (due < window.window_end_ns) & (segment == window.index)
    return requests.filter(pa.array(inside & ~metrics.word_in(requests, "phase", "retracted")))


def waiting(requests: pa.Table, at_ns: int) -> int:
    """Requests due by `at_ns` that had neither a first token nor an end then."""
    due = metrics.numbers(requests, "due_ns")
    first = np.nan_to_num(metrics.numbers(requests, "first_token_offset_ns"), nan=np.inf)
    end = np.nan_to_num(metrics.numbers(requests, "end_offset_ns"), nan=np.inf)
    gone = metrics.status_in(requests, *records.FAILURES) & np.isinf(end)
    return int(np.sum((due <= at_ns) & (due + np.minimum(first, end) > at_ns) & ~gone))


def count(requests: pa.Table, window: Window, slo: Slo, workload: Workload, now_ns: int) -> Dwell:
    """Counts of `window` as known at `now_ns` (the method, 4.2 steps 4 and 5).

    `requests` may hold other rows and rows in flight (status pending). Pure: run again on a later
    table it counts late finishers into their old dwell.
    """
    rows = in_window(requests, window)
    rows = rows.filter(pa.array(metrics.numbers(rows, "due_ns") <= now_ns))
    due_ns = metrics.numbers(rows, "due_ns")
    end_ns = max(min(window.window_end_ns, now_ns), window.window_start_ns)
    blocks = max(1, math.ceil((end_ns - window.window_start_ns) / (BLOCK_S * NS)))
    block = np.minimum((due_ns - window.window_start_ns) // (BLOCK_S * NS), blocks - 1).astype(np.int64)
    ok, pending = metrics.status_in(rows, records.OK), metrics.status_in(rows, records.PENDING)
    work = request_work(rows, workload)
    e2e = quantile(metrics.e2e(rows)[ok], 0.5)
    return Dwell(
        **{field.name: getattr(window, field.name) for field in fields(Window)},
        weight=ABORTED_WEIGHT if window.aborted else 1.0,
        requests=rows.num_rows,
        completed=int(ok.sum()),
        failed=int((~ok & ~pending).sum()),
        pending=int(pending.sum()),
        waiting_at_start=waiting(requests, window.start_ns),
        median_e2e_s=e2e / 1e3 if e2e is not None else None,
        log_work=_log_rate(float(work.sum()), (end_ns - window.window_start_ns) / NS * window.nodes),
        log_work_var=_log_rate_var(work, window.rate_qps * (end_ns - window.window_start_ns) / NS),
        ttft=_tally(*label_ttft(rows, slo.ttft_p90_ms, now_ns), block, blocks),
        tpot=_tally(*label_tpot(rows, slo.tpot_p90_ms, now_ns), block, blocks),
    )


def request_work(requests: pa.Table, workload: Workload) -> Floats:
    """Work of each request, (prompt + 2 out) as planned, in units of the workload's mean."""
    mean = workload.input_tokens.mean + OUTPUT_WORK * workload.output_tokens.mean
    prompt = metrics.numbers(requests, "requested_input_tokens")
    return (prompt + OUTPUT_WORK * metrics.numbers(requests, "requested_output_tokens")) / mean


def ttft_so_far(requests: pa.Table, limit_ms: float, now_ns: int) -> Floats:
    """TTFT in ms per row; of one that still waits its age once that is over the limit, else nan."""
    pending = metrics.status_in(requests, records.PENDING)
    first_ms = metrics.numbers(requests, "first_token_offset_ns") / metrics.NS_PER_MS
    age_ms = (now_ns - metrics.numbers(requests, "due_ns")) / metrics.NS_PER_MS
    waits = np.where(age_ms > limit_ms, age_ms, np.nan)
    return np.where(pending, np.where(np.isnan(first_ms), waits, first_ms), metrics.ttft(requests))


def tpot_so_far(requests: pa.Table, now_ns: int) -> Floats:
    """TPOT in ms per row; of an unfinished answer of 15 tokens or more its pace, of a shorter one nan."""
    tokens = metrics.numbers(requests, "output_tokens")
    paced = metrics.status_in(requests, records.PENDING) & (tokens >= PACE_TOKENS)
    paced &= ~metrics.burst(requests)
    first_ns = metrics.numbers(requests, "due_ns") + metrics.numbers(requests, "first_token_offset_ns")
    pace_ms = (now_ns - first_ns) / metrics.NS_PER_MS / np.where(paced, tokens - 1, np.nan)
    return np.where(paced, pace_ms, metrics.tpot(requests))


def label_ttft(requests: pa.Table, limit_ms: float, now_ns: int) -> tuple[Bools, Bools]:
    """(over, determined) per row."""
    value = ttft_so_far(requests, limit_ms, now_ns)
    return value > limit_ms, ~np.isnan(value)


def label_tpot(requests: pa.Table, limit_ms: float, now_ns: int) -> tuple[Bools, Bools]:
    """(over, determined) per row."""
    value = tpot_so_far(requests, now_ns)
    return value > limit_ms, ~np.isnan(value)


def _tally(over: Bools, determined: Bools, block: NDArray[np.int64], blocks: int) -> LimitCount:
    per_block = np.bincount(block[over & determined], minlength=blocks)
    known = np.bincount(block[determined], minlength=blocks)
    return LimitCount(
        int(per_block.sum()), int(known.sum()), tuple(map(int, per_block)), tuple(map(int, known))
    )


def _log_rate(work: float, node_s: float) -> float:
    return math.log(work / node_s) if work > 0 and node_s > 0 else -math.inf


def _log_rate_var(work: Floats, expected_requests: float) -> float:
    spread = float(np.var(work)) if len(work) else 0.0
    return (1 + spread) / expected_requests if expected_requests > 0 else 0.0
