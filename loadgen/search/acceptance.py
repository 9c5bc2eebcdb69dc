"""Accepts or rejects one required rate: an interim analysis after each window, all within one level."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from analysis.capacity.limit_posterior import Prior, fit
from analysis.capacity.posterior import (
    LEAST_REQUESTS,
    Capacity,
    including,
    level_sd,
    node_effects,
    posterior,
)
from analysis.capacity.window_counts import WindowCounts
from analysis.stats.alpha_spending import LEVEL, tail_at
from conf.specs.bounds import Limit

PASS_WINDOWS = 5
"""Fewest windows from which a rate passes: a quiet start is seen more often than a bad one. With three, one
run in ten passed 3 % above the capacity where both limits bind. One that fails needs no least number: three
of 45 s are the first whose interval is narrow enough."""
HOPELESS_OVER = 0.9
"""A rate fails at once if more than that share of the requests is over a bound: at the capacity none of 220
simulated runs of S1, S2 and S4 shows that in any analysis, and more than 0.6 in the first window are 1 to 4 %
of them."""
INTERVAL_LEVEL = 0.9 * LEVEL
"""Share of the level that the intervals spend; the rest is for the hopeless case."""
UNSEEN_SD = 0.5
"""`posterior.LEVEL_SD` for one required rate, however windows agree: where hardly a request is over a bound,
they agree for want of evidence. At the capacity .04 of `noisy` pass in 15 minutes, with 0.45 and 0.36 some
.10 and .15; with the posterior's own .25 in ten (120, 72, 72 and 72 runs)."""
LEAST_TAIL = 1e-6
"""Smallest tail at which a posterior is known."""
HOLDS = f"at most {100 * LEVEL:g} % of runs say so wrongly, over all analyses"


@dataclass(frozen=True, slots=True)
class InterimAnalysis:
    """Verdict on a rate by now and its reason. `capacity` is None before anything can be said of it."""

    verdict: Literal["passed", "failed", "undecided"]
    reason: str
    capacity: Capacity | None


def prior_at(rate_qps: float) -> Prior:
    """The belief beforehand that each limit is about a rate per node."""
    return Prior(math.log(rate_qps))


def decide(
    rate_qps: float,
    windows: Sequence[WindowCounts],
    at_quantile: Sequence[WindowCounts],
    whole_s: float,
    behind: bool,
) -> InterimAnalysis:
    """Judge a rate: a hopeless case, or else an interval that holds over all analyses lies on one side of it.

    `at_quantile` are the same windows counted at bounds that as many of their requests miss as may. At the
    capacity the bounds are those: how far an estimate strays there is seen even where the service was quiet,
    and few bursts would be believed to be small ones. `whole_s` are the seconds of all windows that there may
    be. While answers fall `behind` the requests nothing passes: a service that still fills looks better than
    it is.
    """
    if not any(window.requests >= LEAST_REQUESTS for window in windows):
        return InterimAnalysis("undecided", "no window says anything yet", None)
    limits = tuple(next((window.limits for window in windows if window.limits), ()))
    belief = prior_at(rate_qps)
    effects = node_effects(windows, belief)
    capacity = including(posterior(windows, belief), effects)
    over = [_over(windows, limit) for limit in limits]
    if max(over) > HOPELESS_OVER:
        return InterimAnalysis("failed", f"{max(over):.0%} of the requests are over a bound", capacity)
    shares = _shares(windows, whole_s)
    tail = max(tail_at(shares, INTERVAL_LEVEL), LEAST_TAIL)
    spreads = {limit: fit(at_quantile, limit, belief).dispersion for limit in limits} if at_quantile else {}
    level = level_sd(windows, UNSEEN_SD)
    final = including(posterior(windows, belief, tail, level, spreads), effects, tail)
    as_limit = including(posterior(at_quantile, belief, tail, level), effects, tail) if at_quantile else final
    low_qps = min(final.low, final.qps_per_node * as_limit.low / as_limit.qps_per_node)
    high_qps = max(final.high, final.qps_per_node * as_limit.high / as_limit.qps_per_node)
    if high_qps <= rate_qps:
        return InterimAnalysis(
            "failed", f"the capacity is at most {high_qps:.3g} QPS per node ({HOLDS})", capacity
        )
    if len(shares) < PASS_WINDOWS or low_qps < rate_qps:
        within = f"the capacity is within [{capacity.low:.3g}, {capacity.high:.3g}] QPS per node (95 %)"
        return InterimAnalysis("undecided", within, capacity)
    if behind:
        return InterimAnalysis(
            "undecided", "answers end more slowly than requests come, as in a service that fills", capacity
        )
    return InterimAnalysis(
        "passed", f"the capacity is at least {low_qps:.3g} QPS per node ({HOLDS})", capacity
    )


def _shares(windows: Sequence[WindowCounts], whole_s: float) -> list[float]:
    """Share of all windows that had passed at each analysis; nodes share their windows."""
    seconds = {window.index: window.seconds for window in windows}
    return [min(passed / whole_s, 1.0) for passed in accumulate(seconds[index] for index in sorted(seconds))]


def windows_s(longest_s: float, transition_s: float, window_s: float, bridge_s: float) -> float:
    """Seconds of all windows that fit into the longest time, one at least, with a bridge between any two."""
    more = (longest_s - transition_s - window_s) / (window_s + bridge_s)
    return window_s * (1 + max(0, math.floor(more)))


def _over(windows: Iterable[WindowCounts], limit: Limit) -> float:
    """Share over one bound in all windows together; 0 for a bound that does not apply."""
    counts = [window.over(limit) for window in windows]
    return sum(count.over for count in counts) / max(1, sum(count.determined for count in counts))
