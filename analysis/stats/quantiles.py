"""Quantiles of samples with infinite values."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_VALUES, LEAST_BEYOND = 100, 10


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


def least_values(q: float) -> int:
    """Fewest values for the interval of a quantile: ten of them must be expected beyond it."""
    return max(LEAST_VALUES, math.ceil(round(LEAST_BEYOND / (1 - q), 6)))
