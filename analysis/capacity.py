"""Posterior of the capacity from dwells: estimate, 95 % interval, certified QPS, binding limit.

Knows counts, realised work and a prior; knows no request, no clock and no next rate. Rates are QPS
per node. Source of every constant and formula: the method, sections 4.1 and 4.2 steps 6 to 8.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analysis.dwell import Dwell, LimitCount
from analysis.quantiles import PHI_START, overdispersion, shrunk

Floats = NDArray[np.float64]
Limit = Literal["ttft", "tpot"]
LIMITS: tuple[Limit, Limit] = ("ttft", "tpot")

ALLOWED_OVER = 0.1
LOGIT_ALLOWED = math.log(ALLOWED_OVER / (1 - ALLOWED_OVER))
SLOPE_CENTRE, SLOPE_SD = math.log(20), 0.5
ROOTS = np.linspace(-0.7, 0.7, 281)
LOG_SLOPES = SLOPE_CENTRE + np.linspace(-1.0, 1.0, 11)
LEAST_REQUESTS = 10
"""A window with fewer requests says nothing (the method, 4.2 step 4)."""
LEAST_PHI_DWELLS, PHI_WEIGHT, PHI_SHARES = 3, 0.5, (0.01, 0.6)
RECENTRE_BEYOND, RECENTRED_SD, RECENTRINGS = 0.4, 0.5, 12
EDGE, EDGE_MASS = 0.02, 0.025
"""More posterior mass than this so near the end of the grid: that end is open."""
SHIFT_RANGE = (-1.5, 0.01)
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True, slots=True)
class Prior:
    """ln(QPS per node) of each limit's root ~ N(centre, sd)."""

    centre: float
    sd: float = 0.25


@dataclass(frozen=True, slots=True)
class LimitFit:
    """The rate at which one limit alone would just be kept, and what that rests on.

    `informative`: requests were seen on both sides of the limit; else one end is only the prior.
    """

    qps_per_node: float
    low: float
    high: float
    slope: float
    phi: float
    over: int
    determined: int
    informative: bool


@dataclass(frozen=True, slots=True)
class Capacity:
    """Posterior of the highest rate at which both limits are kept, in QPS per node.

    `certified` is the 5 % quantile. `open_above`: no request was over any limit, or the posterior
    leans on the upper end of the grid, so `low` is a lower bound and `high` only the prior;
    `open_below` likewise. `dwells` are the indexes used; without any, all figures are only the prior.
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


@dataclass(frozen=True, slots=True)
class _Root:
    """Posterior of one limit's root: a mass per (root, slope) cell, and the shift of each slope."""

    applies: bool
    roots: Floats
    mass: Floats
    shift: Floats
    slope: float
    phi: float
    over: int
    determined: int

    def cdf(self, at: Floats) -> Floats:
        """P(root <= at), shape of `at`."""
        half = (self.roots[1] - self.roots[0]) / 2
        edges = np.concatenate([self.roots[:1] - half, self.roots + half])
        below = np.concatenate([np.zeros((1, len(self.shift))), np.cumsum(self.mass, axis=0)])
        parts = [np.interp(at - shift, edges, below[:, j]) for j, shift in enumerate(self.shift)]
        total: Floats = np.sum(parts, axis=0)
        return np.minimum(total, 1.0)


def posterior(dwells: Sequence[Dwell], prior: Prior) -> Capacity:
    """Capacity from all dwells with weight above 0 (ramp steps are not used). Pure, some ms."""
    used = [d for d in dwells if d.kind == "dwell" and d.weight > 0 and d.requests >= LEAST_REQUESTS]
    for _ in range(RECENTRINGS):
        fits = {limit: _fit(used, limit, prior) for limit in LIMITS}
        grid = _grid(fits["ttft"], fits["tpot"])
        cdf = _either(fits["ttft"], fits["tpot"], grid)
        median = _at(0.5, cdf, grid)
        if abs(median - prior.centre) <= RECENTRE_BEYOND:
            break
        prior = Prior(median, RECENTRED_SD)
    return _capacity(fits["ttft"], fits["tpot"], grid, cdf, tuple(d.index for d in used))


def population_shift(slopes: Floats, log_work_var: float) -> Floats:
    """Shift d of the root from the curve at a given load to the mean over loads, per slope (step 7).

    Solves E over z ~ N(0, s2) of logistic(logit .1 + slope (d + z)) = .1 by bisection.
    """
    loads = math.sqrt(log_work_var) * _NODES
    low, high = (np.full(len(slopes), end) for end in SHIFT_RANGE)
    for _ in range(28):
        middle = (low + high) / 2
        share = _logistic(LOGIT_ALLOWED + slopes[:, None] * (middle[:, None] + loads)) @ _WEIGHTS
        low, high = np.where(share < ALLOWED_OVER, middle, low), np.where(share < ALLOWED_OVER, high, middle)
    shift: Floats = (low + high) / 2
    return shift


def _fit(dwells: Sequence[Dwell], limit: Limit, prior: Prior) -> _Root:
    counts: list[LimitCount] = [getattr(dwell, limit) for dwell in dwells]
    known = [(dwell, counted) for dwell, counted in zip(dwells, counts, strict=True) if counted.determined]
    roots = prior.centre + ROOTS
    slopes = np.exp(LOG_SLOPES)
    belief = _log_normal(roots, prior.centre, prior.sd)[:, None] + _log_normal(
        LOG_SLOPES, SLOPE_CENTRE, SLOPE_SD
    )
    weight = np.array([dwell.weight for dwell, _ in known])
    over = np.array([counted.over for _, counted in known], dtype=np.float64)
    determined = np.array([counted.determined for _, counted in known], dtype=np.float64)
    load = np.array([dwell.log_work for dwell, _ in known])
    logit = LOGIT_ALLOWED + slopes * (load[:, None, None] - roots[:, None])
    # One sum serves both passes: the overdispersion only scales it.
    evidence = np.tensordot(weight * over, logit, axes=1) - np.tensordot(
        weight * determined, np.logaddexp(0.0, logit), axes=1
    )
    mode = np.unravel_index(np.argmax(belief + evidence / PHI_START), belief.shape)
    phi = _phi(known, _logistic(logit[:, mode[0], mode[1]]))
    log_mass = belief + evidence / phi
    mode = np.unravel_index(np.argmax(log_mass), belief.shape)
    mass = np.exp(log_mass - log_mass.max())
    return _Root(
        applies=bool(known),
        roots=roots,
        mass=mass / mass.sum(),
        shift=np.minimum(population_shift(slopes, _mean_var(known)), 0.0),
        slope=float(slopes[mode[1]]),
        phi=phi,
        over=int(over.sum()),
        determined=int(determined.sum()),
    )


def _phi(known: Sequence[tuple[Dwell, LimitCount]], share: Floats) -> float:
    """Overdispersion at the fitted shares over the limit; the start value with fewer than 3 dwells."""
    low, high = PHI_SHARES
    judged = [
        (counted, mu)
        for (dwell, counted), mu in zip(known, share, strict=True)
        if dwell.weight >= PHI_WEIGHT and low < mu < high
    ]
    if len(judged) < LEAST_PHI_DWELLS:
        return PHI_START
    over = np.concatenate([np.array(counted.block_over, dtype=np.float64) for counted, _ in judged])
    seen = np.concatenate([np.array(counted.block_determined, dtype=np.float64) for counted, _ in judged])
    expected = np.concatenate([np.full(len(counted.block_over), mu) for counted, mu in judged])
    raw = overdispersion(over, seen, expected)
    return PHI_START if raw is None else shrunk(raw, len(judged))


def _mean_var(known: Sequence[tuple[Dwell, LimitCount]]) -> float:
    return float(np.mean([dwell.log_work_var for dwell, _ in known])) if known else 0.0


def _grid(ttft: _Root, tpot: _Root) -> Floats:
    """Values of ln(QPS per node) that hold both posteriors, shifts included."""
    lowest = min(float(ttft.shift.min()), float(tpot.shift.min()))
    return np.linspace(ttft.roots[0] + lowest - EDGE, ttft.roots[-1] + EDGE, 601)


def _either(ttft: _Root, tpot: _Root, grid: Floats) -> Floats:
    """Distribution of the smaller root; a limit that never applied does not bind."""
    both = [root for root in (ttft, tpot) if root.applies] or [ttft, tpot]
    survive = np.prod([1 - root.cdf(grid) for root in both], axis=0)
    return np.asarray(1 - survive)


def _capacity(ttft: _Root, tpot: _Root, grid: Floats, cdf: Floats, dwells: tuple[int, ...]) -> Capacity:
    applied = [root for root in (ttft, tpot) if root.applies]
    leans_below, leans_above = _leans(cdf, grid)
    by_ttft = _smaller(ttft, tpot, grid)
    return Capacity(
        qps_per_node=math.exp(_at(0.5, cdf, grid)),
        low=math.exp(_at(0.025, cdf, grid)),
        high=math.exp(_at(0.975, cdf, grid)),
        certified=math.exp(_at(0.05, cdf, grid)),
        binding="ttft" if by_ttft >= 0.5 else "tpot",
        binding_probability=max(by_ttft, 1 - by_ttft),
        ttft=_limit_fit(ttft, grid),
        tpot=_limit_fit(tpot, grid),
        dwells=dwells,
        open_above=leans_above or not any(root.over for root in applied),
        open_below=leans_below or not applied or any(root.over == root.determined for root in applied),
    )


def _limit_fit(root: _Root, grid: Floats) -> LimitFit:
    cdf = root.cdf(grid)
    return LimitFit(
        qps_per_node=math.exp(_at(0.5, cdf, grid)),
        low=math.exp(_at(0.025, cdf, grid)),
        high=math.exp(_at(0.975, cdf, grid)),
        slope=root.slope,
        phi=root.phi,
        over=root.over,
        determined=root.determined,
        informative=0 < root.over < root.determined,
    )


def _smaller(ttft: _Root, tpot: _Root, grid: Floats) -> float:
    """P(the TTFT root is below the TPOT root)."""
    if ttft.applies != tpot.applies:
        return float(ttft.applies)
    survive = 1 - tpot.cdf(grid)
    return float(np.sum(np.diff(ttft.cdf(grid)) * (survive[1:] + survive[:-1]) / 2))


def _leans(cdf: Floats, grid: Floats) -> tuple[bool, bool]:
    bottom, top = np.interp([grid[0] + 2 * EDGE, grid[-1] - 2 * EDGE], grid, cdf)
    return bool(bottom > EDGE_MASS), bool(1 - top > EDGE_MASS)


def _at(q: float, cdf: Floats, grid: Floats) -> float:
    return float(np.interp(q, cdf, grid))


def _log_normal(at: Floats, centre: float, sd: float) -> Floats:
    return -0.5 * ((at - centre) / sd) ** 2


def _logistic(logit: Floats) -> Floats:
    share: Floats = 0.5 + 0.5 * np.tanh(logit / 2)
    return share
