"""Accepts or rejects one required rate: an interim analysis after each window, all within one level."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import Literal

from analysis.capacity.limit_posterior import Prior
from analysis.capacity.node_effects import including, node_effects
from analysis.capacity.posterior import DEPENDENCE, LEAST_REQUESTS, Capacity, posterior
from analysis.capacity.window_counts import WindowCounts
from analysis.stats.alpha_spending import LEVEL, tail_at
from conf.specs.bounds import LIMITS, Limit, allowed_over

PRIOR_SD = 0.25
"""sd (ln) of each limit's prior around its centre (`prior_at`)."""
HALVINGS = 60
"""Halvings of a probability: to the last digit of a float."""
FAIL_WINDOWS, PASS_WINDOWS = 3, 5
"""Fewest windows from which the interval decides. With fewer than three the overdispersion is unknown; a pass
waits longer because a quiet start is seen more often than a bad one: with three, one run in ten passed 3 %
above the capacity where both limits bind."""
CALM_WINDOWS, CALM_BOUND, CALM_OVER, HOPELESS_OVER = 4, 0.7, 0.04, 0.9
"""The two cases that are clear without the interval. A rate passes if at most `CALM_OVER` of the requests are
over `CALM_BOUND` of each bound on a p90, and in proportion of one on another quantile: far below the knee the
posterior, which counts at the bounds only, needs minutes more. It fails if more than `HOPELESS_OVER` are over
a bound. At the capacity none of 220 simulated runs of S1, S2 and S4 shows either in any analysis; three
windows would show the first in 1 %, and more than 0.6 over in the first window are 1 to 4 % of them."""
INTERVAL_LEVEL = 0.9 * LEVEL
"""Share of the level that the intervals spend; the rest is for the clear cases."""
DRIFT_SD, DRIFT_MEMORY_S = 0.015, 120.0
"""A capacity may drift by so much (ln) with so long a memory, and some minutes at one rate cannot tell that
from another capacity: a pass allows for it. Of drawn runs at a capacity that drifts by 2 % 5 to 8 % pass then
(where the windows alone would pass 9 to 12 %), with less drift at most 3 %; a larger sd lets too few pass 3 %
below the capacity (simulated, 0 to 0.02). A failure does not allow for it: 3 to 7 % fail there with 2 %."""
LEAST_TAIL = 1e-6
"""Smallest tail at which a posterior is known."""
HOLDS = f"at most {100 * LEVEL:g} % of runs say so wrongly, over all analyses"


@dataclass(frozen=True, slots=True)
class InterimAnalysis:
    """Verdict on a rate by now and its reason. `capacity` is None before anything can be said of it."""

    verdict: Literal["passed", "failed", "undecided"]
    reason: str
    capacity: Capacity | None


def prior_at(rate_qps: float, limits: int) -> Prior:
    """The prior of each of so many limits at a rate per node: the capacity is as likely above it as below.

    The capacity is the smallest of several limits, so that the centre of each lies above the rate: where a
    limit is above it with probability p, the capacity is with (1 - `DEPENDENCE`) p^limits + `DEPENDENCE` p.
    """
    below, above = 0.0, 1.0
    for _ in range(HALVINGS):
        p = (below + above) / 2
        below, above = (p, above) if (1 - DEPENDENCE) * p**limits + DEPENDENCE * p < 0.5 else (below, p)
    return Prior(math.log(rate_qps) + PRIOR_SD * NormalDist().inv_cdf(above), PRIOR_SD)


def decide(
    rate_qps: float,
    dwells: Sequence[WindowCounts],
    tightened: Sequence[WindowCounts],
    whole_s: float,
    behind: bool,
) -> InterimAnalysis:
    """Judge a rate: a clear case, or else an interval that holds over all analyses lies on one side of it.

    `tightened` are the same windows counted at `CALM_BOUND` of each bound, `whole_s` the seconds of all
    windows that there may be. While answers fall `behind` the requests nothing passes: a service that still
    fills looks better than it is.
    """
    if not any(dwell.requests >= LEAST_REQUESTS for dwell in dwells):
        return InterimAnalysis("undecided", "no window says anything yet", None)
    limits = tuple(next((dwell.limits for dwell in dwells if dwell.limits), ()))
    belief = prior_at(rate_qps, len(limits))
    effects = node_effects(dwells, belief)
    found = including(posterior(dwells, belief), effects)
    over = [_over(dwells, limit) for limit in limits]
    tight = [_over(tightened, limit) * allowed_over(LIMITS[0]) / allowed_over(limit) for limit in limits]
    if max(over) > HOPELESS_OVER:
        return InterimAnalysis("failed", f"{max(over):.0%} of the requests are over a bound", found)
    shares = _shares(dwells, whole_s)
    tail = max(tail_at(shares, INTERVAL_LEVEL), LEAST_TAIL)
    sure = including(posterior(dwells, belief, tail), effects, tail)
    low_qps = _allowing_for_drift(sure, tail, shares[-1] * whole_s)
    if len(shares) >= FAIL_WINDOWS and sure.high <= rate_qps:
        return InterimAnalysis(
            "failed", f"the capacity is at most {sure.high:.3g} QPS per node ({HOLDS})", found
        )
    calm = len(shares) >= CALM_WINDOWS and max(tight) <= CALM_OVER
    if not calm and (len(shares) < PASS_WINDOWS or low_qps < rate_qps):
        within = f"the capacity is within [{found.low:.3g}, {found.high:.3g}] QPS per node (95 %)"
        return InterimAnalysis("undecided", within, found)
    if behind:
        return InterimAnalysis(
            "undecided", "answers end more slowly than requests come, as in a service that fills", found
        )
    if calm:
        return InterimAnalysis("passed", f"only {max(tight):.1%} are over {CALM_BOUND:.0%} of a bound", found)
    drift = f"with up to {100 * DRIFT_SD:g} % drift"
    return InterimAnalysis(
        "passed", f"the capacity is at least {low_qps:.3g} QPS per node ({HOLDS}, {drift})", found
    )


def _allowing_for_drift(capacity: Capacity, tail: float, seconds: float) -> float:
    """The interval's low end, below which lies `tail`, lowered by the drift that so many seconds allow.

    Of an AR(1) of memory m the mean over T has 2 m / T (1 - m / T (1 - e^(-T / m))) of its variance.
    """
    memory = DRIFT_MEMORY_S / seconds
    sd = DRIFT_SD * math.sqrt(2 * memory * (1 + memory * math.expm1(-1 / memory)))
    below = math.log(capacity.qps_per_node / capacity.low)
    return capacity.qps_per_node * math.exp(-math.hypot(below, NormalDist().inv_cdf(1 - tail) * sd))


def _shares(dwells: Sequence[WindowCounts], whole_s: float) -> list[float]:
    """Share of all windows that had passed at each analysis; nodes share their windows."""
    seconds = {dwell.index: dwell.seconds for dwell in dwells}
    return [min(passed / whole_s, 1.0) for passed in accumulate(seconds[index] for index in sorted(seconds))]


def windows_s(longest_s: float, transition_s: float, window_s: float, bridge_s: float) -> float:
    """Seconds of all windows that fit into the longest time, one at least, with a bridge between any two."""
    more = (longest_s - transition_s - window_s) / (window_s + bridge_s)
    return window_s * (1 + max(0, math.floor(more)))


def _over(dwells: Iterable[WindowCounts], limit: Limit) -> float:
    """Share over one bound in all windows together; 0 for a bound that does not apply."""
    counts = [dwell.over(limit) for dwell in dwells]
    return sum(one.over for one in counts) / max(1, sum(one.determined for one in counts))
