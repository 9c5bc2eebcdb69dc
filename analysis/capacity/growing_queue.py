"""Queues that grow: requests that come faster than they end, and a capacity that is only an upper bound.

A window that is too short keeps its bounds although more requests come than end: the queue would break them
later. What such windows show is a rate at which the service cannot go on.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from analysis.capacity.posterior import LEAST_REQUESTS, Capacity
from analysis.capacity.window_counts import NS, Window, WindowCounts
from analysis.rows import metrics, records
from analysis.stats.estimate import NORMAL_95
from analysis.stats.quantiles import Floats
from conf.specs.bounds import allowed_over

UNSTABLE_T = 3.0
"""A larger t of the queue's slope means that the queue grew (the method, 5.2)."""
SURE_SDS = 2.576
"""Standard deviations by which fewer requests must have ended: one chance in two hundred, for it costs the
answer. In 113 searches of twelve scenarios one fell to it, whose estimate was 7 %
too high; with 1.645 it would be three."""


def upper_side(
    capacity: Capacity, windows: Sequence[WindowCounts], requests: Callable[[int], pa.Table]
) -> Capacity:
    """The capacity, as an upper bound if the queue grew in the windows that support what is claimed.

    Those are the valid windows that kept their bounds at the binding limit's lower end or above. `requests`
    are the rows of a window, by its index, and of its neighbours. The bound is the highest rate of these
    windows, or the interval's upper end if that is lower; nothing is certified.
    """
    claimed_qps = capacity.limits[capacity.binding].low
    support = [window for window in windows if _supports(window, claimed_qps)]
    if capacity.open_below or not support or not _grew(support, requests):
        return capacity
    high = min(capacity.high, max(window.rate_qps / window.nodes for window in support))
    return replace(
        capacity,
        qps_per_node=min(capacity.qps_per_node, high),
        low=0.0,
        high=high,
        certified=0.0,
        open_above=False,
        open_below=True,
        queue_grew=True,
    )


def _grew(windows: Sequence[WindowCounts], requests: Callable[[int], pa.Table]) -> bool:
    """True if in all windows together clearly fewer requests ended than came, and the queue rose steadily.

    Either alone is often chance: near the capacity a queue comes and goes, and a window may end in a burst.
    """
    tables = [(requests(window.index), window) for window in windows]
    flows = [
        came_and_ended(rows, measured.window_start_ns, measured.window_end_ns) for rows, measured in tables
    ]
    came, ended = (sum(counts) for counts in zip(*flows, strict=True))
    slopes = [growth_t(rows, measured) or 0.0 for rows, measured in tables]
    return fewer_ended(came, ended, SURE_SDS) and sum(slopes) / math.sqrt(len(slopes)) > UNSTABLE_T


def _supports(window: WindowCounts, claimed_qps: float) -> bool:
    """True if a window of the search shows that the bounds are kept at a rate per node, or above it."""
    used = window.kind == "window" and window.weight > 0 and window.requests >= LEAST_REQUESTS
    kept = all((count.share or 0.0) <= allowed_over(limit) for limit, count in window.limits.items())
    return used and kept and not window.aborted and window.rate_qps / window.nodes >= claimed_qps


def falls_behind(requests: pa.Table, from_ns: float, to_ns: float) -> bool:
    """True if between two instants none or clearly fewer requests ended than came."""
    return fewer_ended(*came_and_ended(requests, from_ns, to_ns))


def came_and_ended(requests: pa.Table, from_ns: float, to_ns: float) -> tuple[int, int]:
    """Requests that came and requests that ended between two instants; a failure is an end.

    `requests` are all that may have ended between them, however early they came.
    """
    due_ns = metrics.numbers(requests, "due_ns")
    end_ns = due_ns + np.nan_to_num(metrics.numbers(requests, "end_offset_ns"))
    end_ns[metrics.status_in(requests, records.PENDING)] = np.inf
    came, ended = (int(((at >= from_ns) & (at < to_ns)).sum()) for at in (due_ns, end_ns))
    return came, ended


def fewer_ended(came: int, ended: int, sds: float = NORMAL_95) -> bool:
    """True if none ended, or fewer than came by so many standard deviations: by default one chance in twenty.

    Each number is taken as Poisson and both as independent, which a service that keeps up is at most.
    """
    return ended == 0 or came - ended > sds * math.sqrt(came + ended)


def growth_t(requests: pa.Table, window: Window) -> float | None:
    """t of the slope of the queue over the window, sampled every second; None if it is unknown.

    The steeper rise of the requests in the system and of those that wait for their first token. The standard
    error allows for the autocorrelation of the residuals.
    """
    due, end = sojourns(requests)
    first = due + metrics.numbers(requests, "first_token_offset_ns")
    at = np.arange(window.window_start_ns, window.window_end_ns, NS, dtype=np.float64)
    slopes = [slope_t(_inside(due, left, at)) for left in (end, np.fmin(first, end))]
    return max((t for t in slopes if t is not None), default=None)


def slope_t(samples: Floats) -> float | None:
    """t-statistic of the linear trend of evenly spaced samples; None below 10 samples or without spread.

    n is reduced to n (1 - a) / (1 + a), a >= 0 being the residuals' autocorrelation at lag 1.
    """
    n = len(samples)
    if n < 10:
        return None
    x = np.arange(n) - (n - 1) / 2
    slope = float(x @ samples) / float(x @ x)
    residual = samples - samples.mean() - slope * x
    squares = float(residual @ residual)
    if squares <= 1e-12 * n:
        return None if slope == 0 else math.copysign(math.inf, slope)
    a = max(float(residual[1:] @ residual[:-1]) / squares, 0.0)
    worth = max(n * (1 - a) / (1 + a), 2.5)
    return slope / math.sqrt(squares / (worth - 2) / float(x @ x))


def sojourns(requests: pa.Table) -> tuple[Floats, Floats]:
    """Due and end times in ns; end is +inf while a request is in flight."""
    due = metrics.numbers(requests, "due_ns")
    end = due + metrics.numbers(requests, "end_offset_ns")
    never = metrics.status_in(requests, records.PENDING)
    return due, np.where(never, np.inf, np.where(np.isnan(end), due, end))


def _inside(came: Floats, left: Floats, at: Floats) -> Floats:
    """Number that had come and not left at each instant."""
    inside = np.searchsorted(np.sort(came), at, "right") - np.searchsorted(np.sort(left), at, "right")
    return inside.astype(np.float64)
