"""Posterior of the capacity (QPS per node): estimate, interval, certified rate; differences between nodes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from analysis.capacity.limit_posterior import LimitPosterior, Prior, fit
from analysis.capacity.window_counts import WindowCounts
from analysis.stats.dispersion import Dispersion
from analysis.stats.estimate import Estimate
from analysis.stats.pooling import Measured, pooled
from analysis.stats.quantiles import Floats
from conf.specs.bounds import LIMITS, Limit, deciding

LEAST_REQUESTS = 10
"""A window with fewer requests says nothing (the method, 4.2 step 4)."""
DEPENDENCE = 0.5
"""Assumed dependence between limits: 0 independent, 1 comonotone. With two
near the knee 0 makes the estimate 0.4 % too low and covers least, 1 makes it 0.3 % higher (simulated)."""
RECENTRE_BEYOND, RECENTRED_SD, RECENTRINGS = 0.4, 0.5, 12
EDGE, EDGE_MASS = 0.06, 0.025
"""An end is open if more posterior mass than this lies so near the end of the grid."""
TAIL, CERTIFIED = 0.025, 0.05
"""Posterior mass beyond each end of an interval of 95 %, and below the certified value."""
LEVEL_SD, LEVEL_S, LEVEL_DISPERSION, FASTER = 0.3, 260.0, 40.0, 0.45
"""A service may be slower at times than its windows show (sd of ln, without any window): by a neighbour, a
cold cache or of itself. Windows of `LEVEL_S` in all halve that, for they had time to see it; the more they
agree the less it is, by 0.7 at this dispersion. That the service is faster at times is believed to a part of
it, for it then was disturbed all along. Beside a neighbour that takes 20 % for a minute after each three, 4
and 15 minutes certify too much in .03 and .06 of the searches; with 0.2 whatever the dispersion, in .06 and
.10 (`foreign_services`)."""
DOUBT = 1.5
"""An answer whose slope or floor is unusual rests on few shares near what is allowed: its ends lie so many
times as far from the estimate (our choice)."""

NORMAL = NormalDist()
Fits = Mapping[Limit, LimitPosterior]
Cdfs = Mapping[Limit, Floats]
"""Distributions of the limit rates over one grid."""


@dataclass(frozen=True, slots=True)
class LimitFit:
    """The rate at which one limit alone would just be kept, and what that rests on.

    `informative`: requests were seen on both sides of the limit; else one end is only the prior.
    `floor`: the share over the limit that no load explains.
    `slope_unusual`: the share hardly follows the load, or jumps with it, and the interval is doubtful.
    """

    qps_per_node: float
    low: float
    high: float
    slope: float = 0.0
    phi: float = 0.0
    over: float = 0
    determined: float = 0
    informative: bool = True
    slope_unusual: bool = False
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """Posterior of the highest rate at which all limits are kept, in QPS per node.

    `certified` is the 5 % quantile. `open_above`: no limit's share over was shown to rise with the load, or
    the posterior leans on the upper end of the grid, so `low` is a lower bound and `high` only the prior;
    `open_below` likewise: a limit was kept in no window at all, or `queue_grew` where it was (`upper_side`).
    `windows` are the indexes of the windows used; without any, all figures are only the prior.
    """

    qps_per_node: float
    low: float
    high: float
    certified: float
    binding: Limit
    binding_probability: float
    limits: Mapping[Limit, LimitFit]
    windows: tuple[int, ...]
    open_above: bool
    open_below: bool
    queue_grew: bool = False


def posterior(
    windows: Sequence[WindowCounts],
    prior: Prior,
    tail: float = TAIL,
    level: float | None = None,
    dispersions: Mapping[Limit, Dispersion] | None = None,
) -> Capacity:
    """Capacity from all windows with weight above 0, in any order, but not from ramp steps and holds.

    `tail` is the posterior mass below its `low`, and above its `high`. `level` is how far (sd of ln) the mean
    level may lie below that of the windows; by default it follows from their length and how they agree.
    `dispersions` hold for a limit that no request is over.
    """
    used = [w for w in windows if w.kind == "window" and w.weight > 0 and w.requests >= LEAST_REQUESTS]
    # Neighbours in a stream follow each other, as the overdispersion over lags needs it.
    limits = next((tuple(window.limits) for window in windows if window.limits), LIMITS)
    used.sort(key=lambda window: (window.stream or 0, window.index))
    for _ in range(RECENTRINGS):
        fits = {limit: fit(used, limit, prior, (dispersions or {}).get(limit)) for limit in limits}
        grid = _grid(fits)
        cdfs = {limit: fitted.cdf(grid) for limit, fitted in fits.items()}
        cdf = _smallest(fits, cdfs)
        centre = _at(0.5, cdf, grid) + RECENTRE_BEYOND * max((f.beyond for f in fits.values()), key=abs)
        if abs(centre - prior.centre) < RECENTRE_BEYOND:
            break
        prior = Prior(centre, RECENTRED_SD)
    applied = [fitted for fitted in fits.values() if fitted.applies]
    bottom, top = np.interp([grid[0] + 2 * EDGE, grid[-1] - 2 * EDGE], grid, cdf)
    smallest = _smallest_of_all(fits, cdfs)
    binding = max(smallest, key=smallest.__getitem__)
    median = _at(0.5, cdf, grid)
    inflation = fits[binding].dispersion.inflation
    agreement = math.sqrt(inflation / (inflation + LEVEL_DISPERSION))
    slower = level_sd(used, LEVEL_SD * agreement) if level is None else level
    reach = DOUBT if fits[binding].slope_unusual else 1.0

    def end(q: float) -> float:
        """A quantile of the capacity (QPS) of a service that may have been in good times, or in bad ones."""
        level = NORMAL.inv_cdf(q) * slower * (1 if q < 0.5 else FASTER)
        return math.exp(median + reach * farther(_at(q, cdf, grid) - median, level))

    return Capacity(
        qps_per_node=math.exp(median),
        low=end(tail),
        high=end(1 - tail),
        certified=end(CERTIFIED),
        binding=binding,
        binding_probability=smallest[binding],
        limits={limit: _limit_fit(fits[limit], cdfs[limit], grid) for limit in limits},
        windows=tuple(window.index for window in used),
        open_above=bool(1 - top > EDGE_MASS) or not any(fitted.rising for fitted in applied),
        open_below=bool(bottom > EDGE_MASS) or not applied or any(not fitted.kept for fitted in applied),
    )


def farther(distance: float, uncertainty: float) -> float:
    """The distance of an end from the median with another uncertainty of the same sign in it."""
    return math.copysign(math.hypot(distance, uncertainty), uncertainty)


def level_sd(windows: Sequence[WindowCounts], prior_sd: float) -> float:
    """How far (sd of ln) the capacity may lie below that of these windows; `prior_sd` before they began."""
    seconds = sum({window.index: window.seconds for window in windows}.values())
    return prior_sd / (1 + seconds / LEVEL_S) if seconds else 0.0


def _grid(fits: Fits) -> Floats:
    """Values of ln(QPS per node) that hold the posteriors of all limits, shifts included."""
    loads = next(iter(fits.values())).loads
    lowest = min(float(fit.shift[np.isfinite(fit.shift)].min()) for fit in fits.values())
    return np.linspace(loads[0] + lowest - EDGE, loads[-1] + EDGE, 601)


def _smallest(fits: Fits, cdfs: Cdfs) -> Floats:
    """Distribution of the smallest limit rate; a limit that never applied does not bind."""
    survive = [1 - cdfs[limit] for limit in _applied(fits)]
    apart, as_one = np.prod(survive, axis=0), np.min(survive, axis=0)
    return np.asarray(1 - (1 - DEPENDENCE) * apart - DEPENDENCE * as_one)


def _limit_fit(posterior: LimitPosterior, cdf: Floats, grid: Floats) -> LimitFit:
    return LimitFit(
        qps_per_node=math.exp(_at(0.5, cdf, grid)),
        low=math.exp(_at(TAIL, cdf, grid)),
        high=math.exp(_at(1 - TAIL, cdf, grid)),
        slope=posterior.slope,
        phi=posterior.dispersion.inflation,
        over=posterior.over,
        determined=posterior.determined,
        informative=0 < posterior.over < posterior.determined,
        slope_unusual=posterior.slope_unusual,
        floor=posterior.floor,
    )


def _applied(fits: Fits) -> Sequence[Limit]:
    """The limits that may be the smallest; one that a joint bound implies is none of them."""
    applied = [limit for limit, fit in fits.items() if fit.applies] or list(fits)
    return deciding(applied)


def _smallest_of_all(fits: Fits, cdfs: Cdfs) -> dict[Limit, float]:
    """P(the limit rate is the smallest) of each limit that applied, as if they were independent."""
    *first, last = _applied(fits)
    smallest = {}
    for limit in first:
        survive = np.prod([1 - cdfs[other] for other in (*first, last) if other != limit], axis=0)
        lowest = cdfs[limit][0] * survive[0]
        smallest[limit] = float(lowest + np.sum(np.diff(cdfs[limit]) * (survive[1:] + survive[:-1]) / 2))
    return {**smallest, last: 1 - sum(smallest.values())}


def _at(q: float, cdf: Floats, grid: Floats) -> float:
    return float(np.interp(q, cdf, grid))


LEAST_EFFECT = 0.02
"""Smallest difference from the mean for which a node is named (the method, 4.4)."""


@dataclass(frozen=True, slots=True)
class NodeEffects:
    """Distance of each node's capacity from the nodes' mean, drawn towards it by what noise explains.

    `between` is the sd between nodes; all are of ln QPS, that is as shares, with 95 % intervals.
    """

    effects: tuple[Estimate, ...]
    between: Estimate

    @property
    def differing(self) -> tuple[int, ...]:
        """The nodes whose effect exceeds 2 %, from 0."""
        return tuple(node for node, effect in enumerate(self.effects) if abs(effect.value) > LEAST_EFFECT)


def node_effects(windows: Sequence[WindowCounts], prior: Prior) -> NodeEffects | None:
    """Random effects over the posterior of each node alone; None without streams of several nodes."""
    streams = sorted({window.stream for window in windows if window.stream is not None})
    if len(streams) < 2:
        return None
    # Nodes are compared over the same minutes, so that good times are no difference between them.
    own = [[window for window in windows if window.stream == stream] for stream in streams]
    alone = [posterior(part, prior, level=0.0) for part in own]
    known = [Estimate(node.qps_per_node, node.low, node.high) for node in alone]
    together = pooled(list(map(Measured.from_estimate, known)))
    return NodeEffects(together.effects, together.between)


def including(capacity: Capacity, effects: NodeEffects | None, tail: float = TAIL) -> Capacity:
    """The capacity of all nodes together; where one differs, its ends take in the variance between them."""
    if effects is None:
        return capacity
    # Each window was counted once for each node.
    capacity = replace(capacity, windows=tuple(sorted(set(capacity.windows))))
    if not effects.differing:
        return capacity
    sd = effects.between.value / math.sqrt(len(effects.effects))

    def at(end: float, q: float) -> float:
        distance = math.log(end / capacity.qps_per_node)
        return capacity.qps_per_node * math.exp(farther(distance, NORMAL.inv_cdf(q) * sd))

    return replace(
        capacity,
        low=at(capacity.low, tail),
        high=at(capacity.high, 1 - tail),
        certified=at(capacity.certified, CERTIFIED),
    )
