"""A capacity whose windows ended before the queue in them stopped growing: an upper bound only.

A window that is too short keeps its bounds although more requests come than end: the queue would break them
later. What such windows show is a rate at which the service cannot go on.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from analysis.capacity.flow_checks import UNSTABLE_T, came_and_ended, fewer_ended, growth_t
from analysis.capacity.posterior import LEAST_REQUESTS, Capacity
from analysis.capacity.window_counts import WindowCounts
from conf.specs.bounds import allowed_over

SURE_SDS = 2.576
"""Standard deviations by which fewer requests must have ended: one chance in two hundred, for it costs the
answer. In 113 searches of twelve scenarios one fell to it, whose estimate was 7 %
too high; with 1.645 it would be three."""


def upper_side(
    capacity: Capacity, windows: Sequence[WindowCounts], requests: Callable[[int], pa.Table]
) -> Capacity:
    """The capacity, as an upper bound if the queue grew in the windows that support the rate it claims.

    Those are the valid windows at that rate and above that kept their bounds. `requests` are the rows of a
    window, by its index, and of its neighbours. The bound is the highest rate of these windows, or the
    interval's upper end if that is lower; nothing is certified.
    """
    claimed_qps = capacity.low if capacity.open_above else capacity.certified
    support = [one for one in windows if _supports(one, claimed_qps)]
    if capacity.open_below or not support or not _grew(support, requests):
        return capacity
    high = min(capacity.high, max(one.rate_qps / one.nodes for one in support))
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
    flows = [came_and_ended(rows, one.window_start_ns, one.window_end_ns) for rows, one in tables]
    came, ended = (sum(counts) for counts in zip(*flows, strict=True))
    slopes = [growth_t(rows, one) or 0.0 for rows, one in tables]
    return fewer_ended(came, ended, SURE_SDS) and sum(slopes) / math.sqrt(len(slopes)) > UNSTABLE_T


def _supports(window: WindowCounts, claimed_qps: float) -> bool:
    """True if a window of the search shows that the bounds are kept at a rate per node, or above it."""
    used = window.kind == "window" and window.weight > 0 and window.requests >= LEAST_REQUESTS
    kept = all((count.share or 0.0) <= allowed_over(limit) for limit, count in window.limits.items())
    return used and kept and not window.aborted and window.rate_qps / window.nodes >= claimed_qps
