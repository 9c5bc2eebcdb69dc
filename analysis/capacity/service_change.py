"""A service that changed during a search: at like loads its pace is another one before and after some time.

The pace is the time per token, in means of 5 s, less what the load around each explains. What comes and goes,
such as a neighbour, stays in the residuals beside the change, whose memory widens its error.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from analysis.capacity.growing_queue import upper_side
from analysis.capacity.kernel import Kernel, log_loads
from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import Capacity, NodeEffects, including, node_effects, posterior
from analysis.capacity.window_counts import BLOCK_S, LOOK_AHEAD, LOOK_BACK, NS, WindowCounts, in_window
from analysis.rows import metrics
from analysis.stats.dispersion import long_run
from analysis.stats.quantiles import Floats

CHANGED_T = 5.0
"""Standard errors of a change that is said."""
PARTS, LEAST_GAP = 4, 0.5
"""Parts of the time before a change and after it, and the part of the change by which each of them must lie
apart from each on the other side: a neighbour comes and goes within them."""
LEAST_S = 500.0
"""Shortest time that shows a change: in six minutes a neighbour that takes a fifth for one minute in four
looks like one in .07 of the searches, and a change of 12 % is seen in .4 to .75 (`foreign_services`)."""
LEAST_PART, CUTS = 0.4, 9
"""Least part of the time before and after a change, and the times that are tried between: a neighbour of a
minute or two must not look like one (`foreign_services`)."""
LEAST_ANSWERS, LEAST_BLOCKS, LEAST_OWN = 3, 12, 0.01
"""Fewest answers of a block with a pace, fewest blocks before and after a change, and the least part of its
variance that the load does not share (our choice)."""
BACK_E2E, AHEAD_E2E = 3.5, 1.0
"""Reach of the load around a block in median durations of an answer: with half of it, or twice as much, a
change is seen in .6 to .8 of the searches in which this one sees it (`foreign_services`)."""

Requests = Callable[[int], pa.Table]
"""The rows of a window, by its index, and of its neighbours."""


@dataclass(frozen=True, slots=True)
class ServiceChange:
    """At an instant of the run's clock a token began to take `times` as long; `t` is in standard errors.

    `gap` is between the nearest parts of the time before and after, as a part of the change.
    """

    at_ns: int
    times: float
    t: float
    gap: float

    def __str__(self) -> str:
        how = "longer" if self.times > 1 else "shorter"
        return (
            f"the service changed during the run: at like loads a token took {abs(self.times - 1):.0%} {how} "
            f"from {self.at_ns / NS:.0f} s on"
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """What a search claims: the capacity, how far its nodes differ, and a change of the service."""

    capacity: Capacity
    nodes: NodeEffects | None
    change: ServiceChange | None


def claimed(
    used: Sequence[WindowCounts], prior: Prior, windows: Sequence[WindowCounts], requests: Requests
) -> Claim:
    """The claim of a search from all its `windows`, of which it `used` those node by node.

    Where the service changed, the lower end of the capacity and what is certified are the lowest of before,
    after and both.
    """
    effects = node_effects(used, prior)
    capacity = including(posterior(used, prior), effects)
    if change := service_change(windows, requests):
        before = [window for window in used if window.window_start_ns < change.at_ns]
        after = [window for window in used if window.window_start_ns >= change.at_ns]
        every = [capacity, *(posterior(part, prior) for part in (before, after) if part)]
        capacity = replace(
            capacity,
            low=min(each.low for each in every),
            high=max(each.high for each in every if each is capacity or not each.open_above),
            certified=min(each.certified for each in every),
        )
    return Claim(upper_side(capacity, windows, requests), effects, change)


def service_change(windows: Sequence[WindowCounts], requests: Requests) -> ServiceChange | None:
    """The clearest change of the pace between two times of a search; None if there is none."""
    used = [window for window in windows if window.kind == "window" and window.weight > 0]
    lives_s = [window.median_e2e_s for window in used if window.median_e2e_s is not None]
    if not lives_s:
        return None
    life = float(np.median(lives_s)) / BLOCK_S
    back, ahead = round(BACK_E2E * life), round(AHEAD_E2E * life)
    kernel = Kernel(min(max(back, 1), LOOK_BACK + 1), min(ahead, LOOK_AHEAD))
    blocks = np.concatenate([_paces(window, requests, kernel) for window in used], axis=1)
    at_s, load, pace = blocks
    if len(at_s) < 2 * LEAST_BLOCKS or at_s[-1] - at_s[0] < LEAST_S:
        return None
    edge_s = LEAST_PART * (at_s[-1] - at_s[0])
    cuts_s = np.linspace(at_s[0] + edge_s, at_s[-1] - edge_s, CUTS)
    changes = [_change(at_s, load, pace, cut_s) for cut_s in cuts_s]
    clearest = max(filter(None, changes), key=lambda change: change.t, default=None)
    return clearest if clearest and clearest.t > CHANGED_T and clearest.gap > LEAST_GAP else None


def _change(at_s: Floats, load: Floats, pace: Floats, cut_s: float) -> ServiceChange | None:
    later = (at_s > cut_s).astype(np.float64)
    if min(later.sum(), (1 - later).sum()) < LEAST_BLOCKS:
        return None
    apart = load - load.mean()
    common = np.column_stack([np.ones(len(load)), apart, apart**2])
    own = later - common @ np.linalg.lstsq(common, later, rcond=None)[0]
    fitted = np.column_stack([common, later])
    *at_load, change = np.linalg.lstsq(fitted, pace, rcond=None)[0]
    if own @ own < LEAST_OWN * len(load) or not change:  # the load changed with the service
        return None
    beside = pace - common @ at_load
    spread = long_run(own * (beside - change * later))
    error = math.sqrt(max(spread.variance, spread.alone, 1e-12)) / float(own @ own)
    before, after = (np.array_split(beside[later == side] / change, PARTS) for side in (0, 1))
    gap = min(map(np.mean, after)) - max(map(np.mean, before))
    return ServiceChange(int(cut_s * NS), math.exp(change), abs(change) / error, float(gap))


def _paces(window: WindowCounts, requests: Requests, kernel: Kernel) -> Floats:
    """Of each block with a pace: its middle in s, ln of the load around it, and the mean ln TPOT."""
    rows = in_window(requests(window.index), window)
    load = log_loads([window], [kernel])[0]
    block = ((metrics.numbers(rows, "due_ns") - window.window_start_ns) // (BLOCK_S * NS)).astype(np.int64)
    block = np.minimum(block, len(load) - 1)
    tpot = metrics.tpot(rows)
    known = np.isfinite(tpot) & (tpot > 0)
    answers = np.bincount(block[known], minlength=len(load))
    total = np.bincount(block[known], weights=np.log(tpot[known]), minlength=len(load))
    at_s = window.window_start_ns / NS + BLOCK_S * (np.arange(len(load)) + 0.5)
    enough = (answers >= LEAST_ANSWERS) & np.isfinite(load)
    return np.array([at_s[enough], load[enough], total[enough] / answers[enough]])
