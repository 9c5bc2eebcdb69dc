"""Quantiles that survive failures, and how little a correlated sample is worth.

Knows arrays of numbers in order of arrival; knows no request and no bound.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BATCHES, MANY_BATCHES = 10, 40
STUDENT_T = {BATCHES: 2.262157, MANY_BATCHES: 2.022691}
"""97.5 % quantile of Student's t with one degree of freedom less than there are batches."""
LEAST_PER_BATCH = 10

LAGS, LAG_SHARE, LEAST_LAGS = 24, 0.35, 4
"""Lags of blocks that are summed: two minutes of 5 s blocks, and no more than this share of all blocks."""
FITTED = 1.5
"""Parameters that the fit took from the residuals, which makes their long-run variance look smaller."""
GROWTH = 0.5
"""Memory beyond the lags: neighbours alike by a factor R over a block's own variance raise phi by R^0.5.
With 1 % drift of two minutes' memory at 500 QPS 15 minutes cover in 92 % without, in 98 % with it, and in
99.5 % with R^0.75, where the interval is a third wider (200 simulated searches)."""
PHI_START, PHI_START_FREEDOM = 10.0, 3.0
"""What is believed of phi beforehand where requests are few, and the degrees of freedom that this weighs.
With the drift of 17 requests a block it is 18. On the engine model it is 8 to 40 at four pairs of bounds, and
of starts from 10 to 20 that one covers best there after 4 and after 15 minutes."""
PHI_START_DRIFT = 0.5
"""What a drift of the capacity adds to that per request of a block. It is common to all requests, so that
their logit has the variance (slope x sd)^2: 0.12 at a slope of 25 and a drift of 1.4 %, times 0.09 per
request for a share of 0.1, times 48, the sum of the correlations of 5 s blocks with two minutes' memory. With
2 % of drift at 500 QPS four minutes cover in 97 %, and in 93 % with half of it (200 simulated searches)."""


def quantile(values: Floats, q: float) -> float | None:
    """The `q` quantile (0 to 1) by numpy's `linear` rule; nan is left out, None if nothing remains.

    +inf is a value like any other: where the rule interpolates towards it the answer is +inf.
    """
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    place = q * (len(known) - 1)
    if abs(place - round(place)) < 1e-9:
        place = round(place)  # 0.07 * 100 > 7 must not reach for the next value, which may be a failure
    low, high = math.floor(place), math.ceil(place)
    ordered = np.partition(known, (low, high))
    if low == high or ordered[low] == ordered[high]:
        return float(ordered[low])
    return float(ordered[low] + (place - low) * (ordered[high] - ordered[low]))


def sectioning(values: Floats, q: float, batches: int = BATCHES) -> tuple[float, float] | None:
    """95 % interval of the `q` quantile from batches of `values` in order of arrival (the method, 2.2).

    Sectioning: quantiles of 10 or 40 batches spread around the quantile of the whole. None when a batch would
    have fewer than 10 values. With failures in a batch quantile the spread is unknown; the answer is
    then (smallest batch quantile, inf), which ten independent batches all exceed once in 1000 times.
    """
    known = values[~np.isnan(values)]
    if len(known) < batches * LEAST_PER_BATCH:
        return None
    whole = quantile(known, q)
    parts = np.array([quantile(batch, q) for batch in np.array_split(known, batches)], dtype=np.float64)
    if whole is None or not math.isfinite(whole) or not np.isfinite(parts).all():
        return float(parts.min()), math.inf
    half = STUDENT_T[batches] * math.sqrt(float(np.sum((parts - whole) ** 2)) / (batches * (batches - 1)))
    return whole - half, whole + half


def parzen(u: float) -> float:
    """Parzen's lag window at 0 <= u <= 1."""
    return 1 - 6 * u**2 + 6 * u**3 if u <= 0.5 else 2 * (1 - u) ** 3


@dataclass(frozen=True, slots=True)
class Dispersion:
    """Variance of counts over that of independent requests, and the degrees of freedom it is known by."""

    phi: float
    freedom: float

    @classmethod
    def unknown(cls, determined: Floats, longer: float = 1.0) -> "Dispersion":
        """What is believed before anything is seen, of blocks with so many requests each.

        Neighbours stay alike for `longer` times as many blocks as usual.
        """
        requests = float(determined @ determined) / max(float(determined.sum()), 1.0)
        return cls(longer * PHI_START + PHI_START_DRIFT * requests, PHI_START_FREEDOM)


def overdispersion(
    over: Floats, determined: Floats, expected: Floats, longer: float = 1.0
) -> Dispersion | None:
    """HAC variance inflation of counts in consecutive blocks, drawn towards the start value.

    `over` of `determined` requests of each block exceeded a limit; `expected` is the fitted probability.
    All have one length, dwells one after the other. Where neighbours stay alike `longer`, by that factor, so
    many are taken as one block. Parzen's lag window, whose sum over both sides is 0.75 and whose squares'
    0.539 times the lags (Priestley, Spectral Analysis and Time Series, table 6.1), gives the correction for
    what the fit took and the degrees of freedom. None without a single request.
    """
    noise = float(np.sum(determined * expected * (1 - expected)))
    if noise <= 0:
        return None
    error = np.add.reduceat(over - determined * expected, np.arange(0, len(over), max(1, round(longer))))
    blocks = len(error)
    lags = min(max(LEAST_LAGS, min(LAGS, int(LAG_SHARE * blocks))), blocks - 1)
    alone = total = float(error @ error)
    for lag in range(1, lags + 1):
        total += 2 * parzen(lag / (lags + 1)) * float(error[:-lag] @ error[lag:])
    taken = max(0.3, 1 - FITTED * 0.75 * (lags + 1) / blocks)
    raw = max(total / noise / taken, 1.0)
    grown = raw * max(1.0, raw / max(1.0, alone / noise)) ** GROWTH
    freedom, start = blocks / (0.539 * (lags + 1)), Dispersion.unknown(determined, longer)
    phi = (freedom * grown + start.freedom * start.phi) / (freedom + start.freedom)
    return Dispersion(phi, freedom + start.freedom)
