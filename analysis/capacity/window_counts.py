"""Counts of a measurement window: its requests over each limit, and the work they were under."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from analysis.rows import metrics, records
from analysis.stats.quantiles import Floats, quantile
from conf.specs.bounds import JOINT, PER_REQUEST, Bound, Limit, metric_of
from conf.specs.experiment import Slo, Workload

NS = 1_000_000_000
BLOCK_S = 5
PACE_TOKENS = 15
"""Fewest output tokens for the pace of an unfinished answer to count (the method, 4.2 step 4)."""
OUTPUT_WORK = 2.0
"""Work of an output token in prompt tokens (the method, 4.2 step 5); a cached prompt token is no work."""
PATH_MS = 100.0
"""Real time outside the engine that an answer in flight is granted where the clock is fast (our choice)."""
ARRIVALS_VAR = {"poisson": 1.0, "gamma": 1.0, "constant": 0.0, "trace": 1.0}
"""Variance over mean of the number of arrivals, before burstiness; of a trace it is taken as Poisson's."""
LOOK_BACK, LOOK_AHEAD = 132, 80
"""Blocks before and after a window whose load is counted too: requests feel it."""
EVERY = Bound("joint_p90", math.inf)
"""A bound for whoever asks which requests keep every bound; its share is not looked at."""
LEAST_COVER_NS = NS
"""Time of a block that must be known for it to have a load."""


Parts = NDArray[np.int64] | Floats
"""Requests as wholes, or in parts."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window of load with the stretch of it that is measured; ns count from the start of the run's clock.

    `rate_qps` is the offered rate of the whole service of `nodes` nodes. `window_end_ns` is where the
    window ended, before `planned_end_ns` if it was aborted. A ramp step is a window too. `concurrency` is
    that of a closed loop, whose rate is what came of it; 0 is an open one.
    """

    index: int
    kind: Literal["ramp", "window", "hold"]
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
    """Requests `over` one limit among those `determined`, whole and per 5 s block of due time.

    Where the limit is on pooled gaps a request counts in parts: by its gaps over the mean number of gaps.
    """

    over: float
    determined: float
    block_over: tuple[float, ...]
    block_determined: tuple[float, ...]

    @property
    def share(self) -> float | None:
        """Over of determined; None when nothing is determined."""
        return self.over / self.determined if self.determined else None


NOTHING = LimitCount(0, 0, (), ())
"""Counts against a limit that no request tells."""


@dataclass(frozen=True, slots=True)
class WindowCounts(Window):
    """A window with its counts so far; `weight` 0 excludes it (void).

    `log_work` is ln(work / seconds / nodes) in units of the workload's mean request, -inf without any.
    `load` is that work per second and node of each 5 s block, from `LOOK_BACK` blocks before the window to
    `LOOK_AHEAD` after it, None where nothing is known. `work_var` is the variance of one request's work,
    `arrivals_var` variance over mean of the number of arrivals, 1 for Poisson. `stream` is the node whose
    own stream was counted, None for the whole service. `median_e2e_s` is the median of `e2e_so_far`. `limits`
    are the counts by the bounds' names, in the order of the bounds.
    """

    weight: float = 1.0
    requests: int = 0
    completed: int = 0
    failed: int = 0
    pending: int = 0
    waiting_at_start: int = 0
    median_e2e_s: float | None = None
    log_work: float = -math.inf
    load: tuple[float | None, ...] = ()
    work_var: float = 0.0
    arrivals_var: float = 1.0
    limits: Mapping[Limit, LimitCount] = field(default_factory=dict)
    stream: int | None = None

    def over(self, limit: Limit) -> LimitCount:
        """Counts against one limit; none where the window was not counted against it."""
        return self.limits.get(limit, NOTHING)


def in_window(requests: pa.Table, window: Window) -> pa.Table:
    """Rows of the window: those planned for it that were due in it and not retracted."""
    due, window_index = metrics.numbers(requests, "due_ns"), metrics.numbers(requests, "window_index")
    inside = (due >= window.window_start_ns) & (due < window.window_end_ns) & (window_index == window.index)
    return metrics.chosen(requests, inside & ~metrics.word_in(requests, "phase", "retracted"))


def waiting(requests: pa.Table, at_ns: int) -> int:
    """Requests due by `at_ns` that had neither a first token nor an end then."""
    due = metrics.numbers(requests, "due_ns")
    first = np.nan_to_num(metrics.numbers(requests, "first_token_offset_ns"), nan=np.inf)
    end = np.nan_to_num(metrics.numbers(requests, "end_offset_ns"), nan=np.inf)
    gone = metrics.status_in(requests, *records.FAILURES) & np.isinf(end)
    return int(np.sum((due <= at_ns) & (due + np.minimum(first, end) > at_ns) & ~gone))


def count(requests: pa.Table, window: Window, slo: Slo, workload: Workload, now_ns: int) -> WindowCounts:
    """Counts of `window` as known at `now_ns` (the method, 4.2 steps 4 and 5).

    `requests` may hold other rows and rows in flight (status pending). Run again on a later
    table it counts late finishers into the window they were due in.
    """
    rows = in_window(requests, window)
    rows = metrics.chosen(rows, metrics.numbers(rows, "due_ns") <= now_ns)
    due_ns = metrics.numbers(rows, "due_ns")
    end_ns = max(min(window.window_end_ns, now_ns), window.window_start_ns)
    blocks = max(1, math.ceil((end_ns - window.window_start_ns) / (BLOCK_S * NS)))
    block = np.minimum((due_ns - window.window_start_ns) // (BLOCK_S * NS), blocks - 1).astype(np.int64)
    ok, pending = metrics.status_in(rows, records.OK), metrics.status_in(rows, records.PENDING)
    work = request_work(rows, workload)
    e2e = quantile(e2e_so_far(rows, now_ns), 0.5)
    limits = {
        bound.limit: _per_block(*parts_over(rows, slo, bound, now_ns), block, blocks) for bound in slo.bounds
    }
    offered, node_s = float(work.sum()), (end_ns - window.window_start_ns) / NS * window.nodes
    return WindowCounts(
        **{field.name: getattr(window, field.name) for field in fields(Window)},
        limits=limits,
        weight=1.0,
        requests=rows.num_rows,
        completed=int(ok.sum()),
        failed=int((~ok & ~pending).sum()),
        pending=int(pending.sum()),
        waiting_at_start=waiting(requests, window.start_ns),
        median_e2e_s=e2e / 1e3 if e2e is not None else None,
        log_work=math.log(offered / node_s) if offered > 0 and node_s > 0 else -math.inf,
        load=_load(requests, window, workload, now_ns, blocks),
        work_var=float(np.var(work)) if len(work) else 0.0,
        arrivals_var=ARRIVALS_VAR[workload.arrivals.kind] / workload.arrivals.burstiness,
    )


def count_by_stream(
    requests: pa.Table, window: Window, streams: int, slo: Slo, workload: Workload, now_ns: int
) -> tuple[WindowCounts, ...]:
    """`count` of each of so many independent streams: a window of one node at its part of the rate."""
    own = replace(window, nodes=1, rate_qps=window.rate_qps / streams)
    number = metrics.numbers(requests, "stream")
    rows = [requests.filter(pa.array(number == stream)) for stream in range(streams)]
    counted = [count(part, own, slo, workload, now_ns) for part in rows]
    return tuple(replace(counts, stream=stream) for stream, counts in enumerate(counted))


def without_lag(requests: pa.Table) -> pa.Table:
    """The rows as if each request had been due when it was sent; what was not sent stays as it is."""
    lag_ns = np.nan_to_num(metrics.numbers(requests, "send_offset_ns")).astype(np.int64)
    offsets = [name for name in requests.column_names if name.endswith("_offset_ns")]
    changes = {name: pc.subtract(requests[name], pa.array(lag_ns)) for name in offsets}
    changes["due_ns"] = pc.add(requests["due_ns"], pa.array(lag_ns))
    for name, column in changes.items():
        requests = requests.set_column(requests.column_names.index(name), name, column)
    return requests


def request_work(requests: pa.Table, workload: Workload) -> Floats:
    """Work of each request, (prompt - shared + 2 out) as planned, in units of the workload's mean.

    What all prompts share is taken as cached: the mean is (1 - prefix_hit) * prompt + 2 out.
    """
    own = (1 - workload.prefix_hit) * workload.prompt_tokens
    mean = own + OUTPUT_WORK * workload.output_tokens.mean
    prompt = metrics.numbers(requests, "requested_input_tokens")
    if workload.prefix_hit:  # without one the mean is of whole prompts, and so is each request
        prompt = prompt - np.nan_to_num(metrics.numbers(requests, "shared_tokens"))
    return (prompt + OUTPUT_WORK * metrics.numbers(requests, "requested_output_tokens")) / mean


def _path_ms(requests: pa.Table) -> Floats:
    """Most ms per row that a fast clock adds to the times of an answer in flight.

    It multiplies what lies outside the engine too, and the engine reports its own times at the end alone.
    """
    return PATH_MS * (metrics.time_scale(requests) - 1)


def _age_over(requests: pa.Table, limit_ms: float, now_ns: int) -> Floats:
    """Age in ms per row where it is over the limit, else nan."""
    age_ms = (now_ns - metrics.numbers(requests, "due_ns")) / metrics.NS_PER_MS - _path_ms(requests)
    return np.where(age_ms > limit_ms, age_ms, np.nan)


def ttft_so_far(requests: pa.Table, limit_ms: float, now_ns: int) -> Floats:
    """TTFT in ms per row; of one that still waits its age once that is over the limit, else nan.

    Also nan for an answer in flight whose first token is over the limit by the path alone, maybe.
    """
    pending = metrics.status_in(requests, records.PENDING)
    first_ms = metrics.token_offset_ns(requests, "first") / metrics.NS_PER_MS
    unsure = (first_ms > limit_ms) & (first_ms - _path_ms(requests) <= limit_ms)
    come_ms = np.where(unsure, np.nan, first_ms)
    waits = np.where(np.isnan(first_ms), _age_over(requests, limit_ms, now_ns), come_ms)
    return np.where(pending, waits, metrics.ttft(requests))


def tpot_so_far(requests: pa.Table, now_ns: int) -> Floats:
    """TPOT in ms per row; of an unfinished answer of 15 events or more its pace, of a shorter one nan.

    Most answers in flight have no count of tokens yet: their events hold as many as those of whole answers.
    """
    events, first = metrics.numbers(requests, "output_tokens"), metrics.first_read_tokens(requests)
    counted = events > metrics.numbers(requests, "events")
    after = (events - first) * np.where(counted, 1.0, _tokens_per_event(requests))
    paced = metrics.status_in(requests, records.PENDING) & (events >= PACE_TOKENS)
    paced &= (after > 0) & ~metrics.burst(requests)
    first_ns = metrics.numbers(requests, "due_ns") + metrics.numbers(requests, "first_token_offset_ns")
    pace_ms = (now_ns - first_ns) / metrics.NS_PER_MS / np.where(paced, after, np.nan)
    return np.where(paced, pace_ms, metrics.tpot(requests))


def _tokens_per_event(requests: pa.Table) -> float:
    """Streamed tokens for each event with text, over the whole answers; 1 without any."""
    events = metrics.numbers(requests, "events")
    whole = metrics.status_in(requests, records.OK) & (events > 0)
    tokens = metrics.streamed_tokens(requests)
    return float(tokens[whole].sum() / events[whole].sum()) if whole.any() else 1.0


def e2e_so_far(requests: pa.Table, now_ns: int) -> Floats:
    """Duration of an answer in ms per row; of an unfinished one as its pace has it, nan if that is unknown.

    The answers that end first are the short ones: their durations alone would be too short.
    """
    rest = metrics.numbers(requests, "requested_output_tokens") - 1
    first_ms = metrics.token_offset_ns(requests, "first") / metrics.NS_PER_MS
    paced = first_ms + rest * tpot_so_far(requests, now_ns)
    done, pending = (metrics.status_in(requests, state) for state in (records.OK, records.PENDING))
    return np.where(done, metrics.e2e(requests), np.where(pending, paced, np.nan))


def latency_so_far(requests: pa.Table, bound: Bound, now_ns: int) -> Floats:
    """The bounded latency of a request in ms per row as known at `now_ns`; nan where it is not known yet.

    An E2E that is not over yet is its age once that is over the bound.
    """
    metric = metric_of(bound.limit)
    if metric == "ttft":
        return ttft_so_far(requests, bound.ms, now_ns)
    if metric == "tpot":
        return tpot_so_far(requests, now_ns)
    if metric == "e2e":
        pending = metrics.status_in(requests, records.PENDING)
        return np.where(pending, _age_over(requests, bound.ms, now_ns), metrics.e2e(requests))
    if metric == "queue":
        return metrics.queue(requests)
    assert metric == "itl", metric
    return metrics.own_itl(requests)


def over_bound(requests: pa.Table, slo: Slo, bound: Bound, now_ns: int) -> Floats:
    """The bounded latency over its bound per row as known at `now_ns`; nan where it is not known yet.

    Of a joint bound it is the largest of the request's latencies over their bounds, 0 where none applies.
    """
    if metric_of(bound.limit) != JOINT:
        return latency_so_far(requests, bound, now_ns) / bound.ms
    own = [each for each in slo.bounds if metric_of(each.limit) in PER_REQUEST]
    none = np.full(requests.num_rows, np.nan)
    worst = np.fmax.reduce([none, *(over_bound(requests, slo, each, now_ns) for each in own)])
    pending = metrics.status_in(requests, records.PENDING)
    return np.where(pending & ~(worst > 1), np.nan, np.nan_to_num(worst, posinf=np.inf))


def parts_over(requests: pa.Table, slo: Slo, bound: Bound, now_ns: int) -> tuple[Parts, Parts]:
    """The part of each request that is over a bound, and the part of it that is known, per row.

    A request is a whole, 0 or 1; under a bound on pooled gaps it is its gaps over their mean number.
    """
    metric = metric_of(bound.limit)
    if metric == "itl_pooled":
        return metrics.gaps_over(requests)
    if metric == JOINT:
        latency, most = over_bound(requests, slo, bound, now_ns), 1.0
    else:
        latency, most = latency_so_far(requests, bound, now_ns), bound.ms
    return (latency > most).astype(np.int64), (~np.isnan(latency)).astype(np.int64)


def _per_block(over: Parts, determined: Parts, block: NDArray[np.int64], blocks: int) -> LimitCount:
    counts = [
        np.bincount(block, weights=parts, minlength=blocks).astype(parts.dtype).tolist()
        for parts in (over, determined)
    ]
    return LimitCount(sum(counts[0]), sum(counts[1]), tuple(counts[0]), tuple(counts[1]))


def _load(
    requests: pa.Table, window: Window, workload: Workload, now_ns: int, blocks: int
) -> tuple[float | None, ...]:
    """Work offered per second and node, block by block (`WindowCounts.load`).

    Load after the window is known up to the end of the next window; without one it is unknown.
    """
    due, window_index = metrics.numbers(requests, "due_ns"), metrics.numbers(requests, "window_index")
    sent = (due <= now_ns) & ~metrics.word_in(requests, "phase", "retracted")
    sent &= ~metrics.status_in(requests, *metrics.UNSENT)
    # A window measured again has the same number; what a killed session offered after it lies before.
    later = due[sent & (window_index > window.index) & (due >= window.window_end_ns)]
    until_ns = later.max() if len(later) else min(window.window_end_ns, now_ns)
    sent &= due < until_ns
    edges = window.window_start_ns + BLOCK_S * NS * np.arange(-LOOK_BACK, blocks + LOOK_AHEAD + 1)
    work, _ = np.histogram(due[sent], edges, weights=request_work(requests, workload)[sent])
    from_ns = due[sent].min() if sent.any() else until_ns
    covered_ns = np.minimum(edges[1:], until_ns) - np.maximum(edges[:-1], from_ns)
    load = work / np.maximum(covered_ns, 1) * NS / window.nodes
    known = covered_ns >= LEAST_COVER_NS
    return tuple(float(rate) if covered else None for rate, covered in zip(load, known, strict=True))
