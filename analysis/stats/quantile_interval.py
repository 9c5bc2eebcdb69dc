"""The interval of a quantile of values that resemble their neighbours, as latencies of a queue do."""

import math
from typing import NamedTuple

import numpy as np

from analysis.stats.dispersion import overdispersion, rarity
from analysis.stats.pooling import student_t
from analysis.stats.quantiles import Floats, least_values, quantile

BLOCK_S = 5.0
UNSEEN = 16.0
"""Variance that a stretch hides, as a multiple of what it shows over its degrees of freedom: without a busy
period both the quantile and the variance are low. Of ten minutes of 52 latencies, those with ten intervals or
more, 4 are covered in less than 0.9 with 12 and none with 16 (`foreign_services --quantiles`)."""


class QuantileInterval(NamedTuple):
    """A 95 % interval; without `ends` the values, or else the seconds at the same rate, that it takes."""

    ends: tuple[float, float] | None
    needs: int | None = None
    needs_s: float | None = None


def quantile_interval(values: Floats, q: float, seconds: float) -> QuantileInterval:
    """The quantiles of `values` at q - d and q + d; d is the error of the share of values over the quantile.

    The values arrived in this order and in `seconds`; nan is left out. The share is binomial but for the
    dispersion of blocks of 5 s. There is no interval where d is wider than the distance of q from 0 or 1.
    """
    known = values[~np.isnan(values)]
    count, middle = len(known), quantile(known, q)
    if middle is None or count < least_values(q):
        return QuantileInterval(None, needs=least_values(q))
    over = known > middle if math.isfinite(middle) else np.isinf(known)
    begins = np.linspace(0, count, min(max(round(seconds / BLOCK_S), 1), count), endpoint=False).astype(int)
    sizes = np.diff(begins, append=count).astype(np.float64)
    # Equal values have none over the quantile, which is no less known for that.
    share = np.clip(over.mean(), 1 / count, 1 - 1 / count)
    counts = np.add.reduceat(over.astype(np.float64), begins)
    seen = overdispersion(counts, sizes, np.full(len(sizes), share), rarity=rarity(1 - q))
    assert seen is not None
    variance = q * (1 - q) * seen.inflation * (1 + UNSEEN / seen.freedom) / count
    wide, room = student_t(0.975, int(seen.freedom)) * math.sqrt(variance), min(q, 1 - q)
    if wide >= room:
        return QuantileInterval(None, needs_s=seconds * (wide / room) ** 2)
    low, high = quantile(known, q - wide), quantile(known, q + wide)
    assert low is not None and high is not None
    return QuantileInterval((low, high))
