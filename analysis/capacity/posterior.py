"""Posterior of the capacity from measurement windows: estimate, 95 % interval, certified QPS, binding limit.

Knows the posteriors of both limits; knows no request, no clock and no next rate. Rates are QPS per node.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.capacity.kernel import Floats
from analysis.capacity.limit_posterior import LimitPosterior, Prior, fit
from analysis.capacity.window_counts import WindowCounts
from conf.specs.bounds import LIMITS, Limit

LEAST_REQUESTS = 10
"""A window with fewer requests says nothing (the method, 4.2 step 4)."""
DEPENDENCE = 0.5
"""Assumed dependence between the two limits: 0 independent, 1 comonotone. With both
near the knee 0 makes the estimate 0.4 % too low and covers least, 1 makes it 0.3 % higher (simulated)."""
RECENTRE_BEYOND, RECENTRED_SD, RECENTRINGS = 0.4, 0.5, 12
EDGE, EDGE_MASS = 0.06, 0.025
"""An end is open if more posterior mass than this lies so near the end of the grid."""
TAIL = 0.025
"""Posterior mass beyond each end of an interval of 95 %."""


@dataclass(frozen=True, slots=True)
class LimitFit:
    """The rate at which one limit alone would just be kept, and what that rests on.

    `informative`: requests were seen on both sides of the limit; else one end is only the prior.
    `slope_unusual`: the share hardly follows the load, or jumps with it, and the interval is doubtful.
    """

    qps_per_node: float
    low: float
    high: float
    slope: float
    phi: float
    over: int
    determined: int
    informative: bool
    slope_unusual: bool = False


@dataclass(frozen=True, slots=True)
class Capacity:
    """Posterior of the highest rate at which both limits are kept, in QPS per node.

    `certified` is the 5 % quantile. `open_above`: no limit's share over was shown to rise with the load, or
    the posterior leans on the upper end of the grid, so `low` is a lower bound and `high` only the prior;
    `open_below` likewise: a limit was kept in no window at all. `dwells` are the indexes of the windows used;
    without any, all figures are only the prior.
    """

    qps_per_node: float
    low: float
    high: float
    certified: float
    binding: Limit
    binding_probability: float
    ttft: LimitFit
    tpot: LimitFit
    dwells: tuple[int, ...]
    open_above: bool
    open_below: bool


def posterior(windows: Sequence[WindowCounts], prior: Prior, tail: float = TAIL) -> Capacity:
    """Capacity from all windows with weight above 0, in any order; ramp steps and confirmation runs are not
    used.

    `tail` is the posterior mass below its `low`, and above its `high`.
    """
    used = [w for w in windows if w.kind == "dwell" and w.weight > 0 and w.requests >= LEAST_REQUESTS]
    # Neighbours in a stream follow each other, as the overdispersion over lags needs it.
    used.sort(key=lambda window: (window.stream or 0, window.index))
    for _ in range(RECENTRINGS):
        fits = {limit: fit(used, limit, prior) for limit in LIMITS}
        grid = _grid(fits["ttft"], fits["tpot"])
        cdf = _either(fits["ttft"], fits["tpot"], grid)
        centre = _at(0.5, cdf, grid) + RECENTRE_BEYOND * max((f.beyond for f in fits.values()), key=abs)
        if abs(centre - prior.centre) < RECENTRE_BEYOND:
            break
        prior = Prior(centre, RECENTRED_SD)
    return _capacity(fits["ttft"], fits["tpot"], grid, cdf, tuple(window.index for window in used), tail)


def _grid(ttft: LimitPosterior, tpot: LimitPosterior) -> Floats:
    """Values of ln(QPS per node) that hold both posteriors, shifts included."""
    lowest = min(float(ttft.shift.min()), float(tpot.shift.min()))
    return np.linspace(ttft.loads[0] + lowest - EDGE, ttft.loads[-1] + EDGE, 601)


def _either(ttft: LimitPosterior, tpot: LimitPosterior, grid: Floats) -> Floats:
    """Distribution of the smaller limit rate; a limit that never applied does not bind."""
    both = [limit for limit in (ttft, tpot) if limit.applies] or [ttft, tpot]
    survive = [1 - limit.cdf(grid) for limit in both]
    apart, as_one = np.prod(survive, axis=0), np.min(survive, axis=0)
    return np.asarray(1 - (1 - DEPENDENCE) * apart - DEPENDENCE * as_one)


def _capacity(
    ttft: LimitPosterior,
    tpot: LimitPosterior,
    grid: Floats,
    cdf: Floats,
    dwells: tuple[int, ...],
    tail: float,
) -> Capacity:
    applied = [limit for limit in (ttft, tpot) if limit.applies]
    leans_below, leans_above = _leans(cdf, grid)
    by_ttft = _smaller(ttft, tpot, grid)
    return Capacity(
        qps_per_node=math.exp(_at(0.5, cdf, grid)),
        low=math.exp(_at(tail, cdf, grid)),
        high=math.exp(_at(1 - tail, cdf, grid)),
        certified=math.exp(_at(0.05, cdf, grid)),
        binding="ttft" if by_ttft >= 0.5 else "tpot",
        binding_probability=max(by_ttft, 1 - by_ttft),
        ttft=_limit_fit(ttft, grid),
        tpot=_limit_fit(tpot, grid),
        dwells=dwells,
        open_above=leans_above or not any(limit.rising for limit in applied),
        open_below=leans_below or not applied or any(not limit.kept for limit in applied),
    )


def _limit_fit(limit: LimitPosterior, grid: Floats) -> LimitFit:
    cdf = limit.cdf(grid)
    return LimitFit(
        qps_per_node=math.exp(_at(0.5, cdf, grid)),
        low=math.exp(_at(0.025, cdf, grid)),
        high=math.exp(_at(0.975, cdf, grid)),
        slope=limit.slope,
        phi=limit.dispersion,
        over=limit.over,
        determined=limit.determined,
        informative=0 < limit.over < limit.determined,
        slope_unusual=limit.slope_unusual,
    )


def _smaller(ttft: LimitPosterior, tpot: LimitPosterior, grid: Floats) -> float:
    """P(the limit rate of TTFT is below that of TPOT)."""
    if ttft.applies != tpot.applies:
        return float(ttft.applies)
    survive = 1 - tpot.cdf(grid)
    return float(np.sum(np.diff(ttft.cdf(grid)) * (survive[1:] + survive[:-1]) / 2))


def _leans(cdf: Floats, grid: Floats) -> tuple[bool, bool]:
    bottom, top = np.interp([grid[0] + 2 * EDGE, grid[-1] - 2 * EDGE], grid, cdf)
    return bool(bottom > EDGE_MASS), bool(1 - top > EDGE_MASS)


def _at(q: float, cdf: Floats, grid: Floats) -> float:
    return float(np.interp(q, cdf, grid))
