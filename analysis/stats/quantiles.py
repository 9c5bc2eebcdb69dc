"""Quantiles of samples with infinite values, and their intervals from batches."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BATCHES, MANY_BATCHES = 10, 40
STUDENT_T = {BATCHES: 2.262157, MANY_BATCHES: 2.022691}
"""97.5 % quantile of Student's t with one degree of freedom less than there are batches."""
LEAST_PER_BATCH = 10


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


def least_values(q: float, batches: int = BATCHES) -> int:
    """Fewest values for the interval of a quantile: one of each batch must be expected beyond it."""
    return batches * max(LEAST_PER_BATCH, math.ceil(round(1 / (1 - q), 6)))


def sectioning(values: Floats, q: float, batches: int = BATCHES) -> tuple[float, float] | None:
    """95 % interval of the `q` quantile from batches of `values` in order of arrival (the method, 2.2).

    Sectioning: quantiles of 10 or 40 batches spread around the quantile of the whole. None when a batch would
    have fewer than 10 values, or too few for one beyond the quantile, and when the batches spread so far that
    the interval would hold negative values, which no latency has: they are too few independent stretches.
    With failures in a batch quantile the spread is unknown; the answer is then (smallest batch quantile,
    inf), which ten independent batches all exceed once in 1000 times.
    """
    known = values[~np.isnan(values)]
    if len(known) < least_values(q, batches):
        return None
    whole = quantile(known, q)
    parts = np.array([quantile(batch, q) for batch in np.array_split(known, batches)], dtype=np.float64)
    if whole is None or not math.isfinite(whole) or not np.isfinite(parts).all():
        return float(parts.min()), math.inf
    half = STUDENT_T[batches] * math.sqrt(float(np.sum((parts - whole) ** 2)) / (batches * (batches - 1)))
    return None if half > whole else (whole - half, whole + half)
