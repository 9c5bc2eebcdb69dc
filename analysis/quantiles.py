"""Quantiles that survive failures, and how little a correlated sample is worth.

Knows arrays of numbers in order of arrival; knows no request and no bound.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BATCHES = 10
STUDENT_T = 2.262157
"""97.5 % quantile of Student's t with BATCHES - 1 degrees of freedom."""
LEAST_PER_BATCH = 10

LAGS = 10
PHI_START = 40.0
"""The method says 20; over 60 searches of this engine model 20 covers .90 and 40 covers .98 (15 minutes)."""
PHI_START_DWELLS = 3
PHI_RANGE = (1.0, 400.0)


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


def sectioning(values: Floats, q: float) -> tuple[float, float] | None:
    """95 % interval of the `q` quantile from 10 batches of `values` in order of arrival (the method, 2.2).

    Sectioning: batch quantiles spread around the quantile of the whole. None when a batch would
    have fewer than 10 values. With failures in a batch quantile the spread is unknown; the answer is
    then (smallest batch quantile, inf), which ten independent batches all exceed once in 1000 times.
    """
    known = values[~np.isnan(values)]
    if len(known) < BATCHES * LEAST_PER_BATCH:
        return None
    whole = quantile(known, q)
    parts = np.array([quantile(batch, q) for batch in np.array_split(known, BATCHES)], dtype=np.float64)
    if whole is None or not math.isfinite(whole) or not np.isfinite(parts).all():
        return float(parts.min()), math.inf
    half = STUDENT_T * math.sqrt(float(np.sum((parts - whole) ** 2)) / (BATCHES * (BATCHES - 1)))
    return whole - half, whole + half


def parzen(u: float) -> float:
    """Parzen's lag window at 0 <= u <= 1."""
    return 1 - 6 * u**2 + 6 * u**3 if u <= 0.5 else 2 * (1 - u) ** 3


def overdispersion(over: Floats, determined: Floats, expected: Floats) -> float | None:
    """HAC variance inflation of counts in consecutive blocks (the method, 4.2 step 6), clipped to [1, 400].

    `over` of `determined` requests of each block exceeded a limit; `expected` is the fitted
    probability. All have one length, dwells one after the other. None without a single request.
    """
    noise = float(np.sum(determined * expected * (1 - expected)))
    if noise <= 0:
        return None
    error = over - determined * expected
    total = float(error @ error)
    for lag in range(1, min(LAGS, len(error) - 1) + 1):
        total += 2 * parzen(lag / (LAGS + 1)) * float(error[:-lag] @ error[lag:])
    return min(max(total / noise, PHI_RANGE[0]), PHI_RANGE[1])


def shrunk(phi: float, dwells: int) -> float:
    """Overdispersion of `dwells` dwells drawn towards the start value, which weighs 3 dwells."""
    return (dwells * phi + PHI_START_DWELLS * PHI_START) / (dwells + PHI_START_DWELLS)
