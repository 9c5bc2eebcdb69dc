"""Level of each of several interim analyses, so that all of them together keep one level."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from analysis.stats.quantiles import Floats

LEVEL = 0.05
"""Largest share of runs at exactly the capacity that may pass, and that may fail, over all analyses (our
choice)."""
POWER = 3.0
"""share^POWER of the level is spent after a share of the longest time (Kim and DeMets, Biometrika 74,
1987). Near that of O'Brien and Fleming, which leaves nearly all to the late analyses: early
ones know the dispersion least. Of 1.5, 2 and 3 it has the most power at the last analysis (simulated)."""
STEP = 0.05
CELLS = np.arange(-6.0, 6.0 + STEP / 2, STEP)
"""Middles of the cells in which the density of the statistic is followed: each tail is known to 1 %."""


def spent(share: float, level: float = LEVEL) -> float:
    """Part of the level that is spent after a share (0 to 1) of the longest time."""
    return float(level * min(max(share, 0.0), 1.0) ** POWER)


def tail_at(shares: Sequence[float], level: float = LEVEL) -> float:
    """One-sided tail probability that decides at the last of these analyses; 0 where nothing is left.

    `shares` of the longest time had passed at each analysis, in order. At the edge itself the statistic is
    taken as a Brownian motion over its time (Lan and DeMets, Biometrika 70, 1983): its values are alike, the
    more so the nearer they are, which is why the tails add up to more than the level.
    """
    bound, _ = _followed(tuple(shares), level)
    return math.erfc(bound / math.sqrt(2)) / 2


@lru_cache(maxsize=1024)
def _followed(shares: tuple[float, ...], level: float) -> tuple[float, Floats]:
    """Bound of the statistic at the last analysis, and its density among the runs that still go on."""
    before, share = shares[:-1], shares[-1]
    density = _normal(CELLS)
    if before:
        kept = math.sqrt(before[-1] / share)
        if kept >= 1:
            return math.inf, _followed(before, level)[1]
        spread = math.sqrt(1 - kept**2)
        moves = _normal((CELLS[:, None] - kept * CELLS) / spread) / spread
        density = (moves * _followed(before, level)[1]).sum(axis=1) * STEP
    least = spent(share, level) - (spent(before[-1], level) if before else 0.0)
    beyond = np.cumsum(density[::-1])[::-1] * STEP
    bound = float(np.interp(-least, -beyond, CELLS)) - STEP / 2
    return bound, density * np.clip((bound - CELLS) / STEP + 0.5, 0.0, 1.0)


def _normal(at: Floats) -> Floats:
    return np.exp(-0.5 * at**2) / math.sqrt(2 * math.pi)
