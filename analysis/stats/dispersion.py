"""Dispersion: variance of counts in blocks over that of independent requests; the intervals of quantiles."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from analysis.stats.pooling import student_t
from analysis.stats.quantiles import Floats, least_values, quantile

LAGS, LAG_SHARE, LEAST_LAGS = 24, 0.35, 4
"""Lags of blocks that are summed: two minutes of 5 s blocks, and no more than this share of all blocks."""
FITTED = 1.5
"""Parameters that the fit took from the residuals, which makes their long-run variance look smaller."""
GROWTH = 0.5
"""Memory beyond the lags: neighbours alike by a factor R over a block's own variance raise the dispersion by
R^0.5. With 1 % drift of two minutes' memory at 500 QPS 15 minutes cover in 92 % without, in 98 % with it, and
in 99.5 % with R^0.75, where the interval is a third wider (200 simulated searches)."""
START, START_FREEDOM = 10.0, 3.0
"""Dispersion that is believed beforehand where requests are few, and the degrees of freedom of that belief.
With the drift of 17 requests a block it is 18. On the engine model it is 8 to 40 at four pairs of bounds, and
of starts from 10 to 20 that one covers best there after 4 and after 15 minutes."""
RARER = 0.3
"""Power of the rarity with which that grows under a limit that fewer may exceed than p90 allows: one burst
puts many requests over it. Under p99 it is 20 and with the drift 34 and 28 for TTFT and ITL on the engine
model, where 120 and 40 hours at the capacity show 37 and 26. After 30 minutes the 95 % interval of p99 TTFT
covers in .89 with 10, in .95 with 20 (92 simulated searches)."""
START_DRIFT = 0.5
"""Dispersion that a drift of the capacity adds to that per request of a block. It is common to all requests,
so that their logit has the variance (slope x sd)^2: 0.12 at a slope of 25 and a drift of 1.4 %, times 0.09
per request for a share of 0.1, times 48, the sum of the correlations of 5 s blocks with two minutes' memory.
With 2 % of drift at 500 QPS four minutes cover in 97 %, and in 93 % with half of it (200 simulated
searches)."""


P90_SHARE = 0.1


def rarity(allowed: float) -> float:
    """How many times as rare as what p90 allows over its limit a share is; at least 1."""
    return max(round(P90_SHARE / allowed, 6), 1.0)


def parzen(u: float) -> float:
    """Parzen's lag window at 0 <= u <= 1."""
    return 1 - 6 * u**2 + 6 * u**3 if u <= 0.5 else 2 * (1 - u) ** 3


@dataclass(frozen=True, slots=True)
class Dispersion:
    """Variance of counts over that of independent requests, and the degrees of freedom it is known by."""

    inflation: float
    freedom: float

    @classmethod
    def unknown(cls, determined: Floats, longer: float = 1.0, rarity: float = 1.0) -> "Dispersion":
        """The belief before anything is seen, for blocks with so many requests each.

        Neighbours stay alike for `longer` times as many blocks as usual, under a limit that is `rarity` times
        as rare as p90.
        """
        requests = float(determined @ determined) / max(float(determined.sum()), 1.0)
        return cls(longer * START * rarity**RARER + START_DRIFT * requests, START_FREEDOM)


class LongRun(NamedTuple):
    """Variance of a sum of residuals that resemble their neighbours, `alone` without what they share, and the
    degrees of freedom it is known by."""

    variance: float
    alone: float
    freedom: float


def long_run(error: Floats, unit: float = 1.0) -> LongRun:
    """Variance of the sum of consecutive residuals of a fit, over `unit`.

    Parzen's lag window, whose sum over both sides is 0.75 and whose squares' 0.539 times the lags (Priestley,
    Spectral Analysis and Time Series, table 6.1), gives the correction for what the fit took and the degrees
    of freedom.
    """
    blocks = len(error)
    lags = min(max(LEAST_LAGS, min(LAGS, int(LAG_SHARE * blocks))), blocks - 1)
    alone = total = float(error @ error)
    for lag in range(1, lags + 1):
        total += 2 * parzen(lag / (lags + 1)) * float(error[:-lag] @ error[lag:])
    taken = max(0.3, 1 - FITTED * 0.75 * (lags + 1) / blocks)
    return LongRun(total / unit / taken, alone / unit, blocks / (0.539 * (lags + 1)))


def overdispersion(
    over: Floats, determined: Floats, expected: Floats, longer: float = 1.0, rarity: float = 1.0
) -> Dispersion | None:
    """Autocorrelation-consistent variance inflation of counts in blocks, drawn towards the start value.

    `over` of `determined` requests of each block exceeded a limit; `expected` is the fitted probability. All
    arrays have one length, the windows one after the other. Where neighbours stay alike `longer`, by that
    factor, so many are taken as one block. A limit rarer than p90 has no more degrees of freedom than bursts
    were seen, requests over it taken `inflation` at a time: the start value's where less is seen, for few
    bursts look alike by chance. None without a single request.
    """
    noise = float(np.sum(determined * expected * (1 - expected)))
    if noise <= 0:
        return None
    error = np.add.reduceat(over - determined * expected, np.arange(0, len(over), max(1, round(longer))))
    estimate = long_run(error, noise)
    raw = max(estimate.variance, 1.0)
    grown = raw * max(1.0, raw / max(1.0, estimate.alone)) ** GROWTH
    freedom, start = estimate.freedom, Dispersion.unknown(determined, longer, rarity)
    if rarity > 1:
        freedom = min(freedom, float(over.sum()) / max(grown, start.inflation))
    inflation = (freedom * grown + start.freedom * start.inflation) / (freedom + start.freedom)
    return Dispersion(inflation, freedom + start.freedom)


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
    scatter = overdispersion(counts, sizes, np.full(len(sizes), share), rarity=rarity(1 - q))
    assert scatter is not None
    variance = q * (1 - q) * scatter.inflation * (1 + UNSEEN / scatter.freedom) / count
    wide, room = student_t(0.975, int(scatter.freedom)) * math.sqrt(variance), min(q, 1 - q)
    if wide >= room:
        return QuantileInterval(None, needs_s=seconds * (wide / room) ** 2)
    low, high = quantile(known, q - wide), quantile(known, q + wide)
    assert low is not None and high is not None
    return QuantileInterval((low, high))
