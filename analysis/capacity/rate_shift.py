"""From the limit load, which requests meet, to the limit rate, which is offered."""

import math

import numpy as np

from analysis.stats.quantiles import Floats

SHIFT_RANGE = (-1.5, 0.05)
LEAST_LOAD = 0.02
HALVINGS = 18
"""Halvings of the shift's range: to 6e-6, far within any interval."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def population_shift(
    slopes: Floats, load_var: float, arrivals_var: float, allowed: Floats | float = 0.1
) -> Floats:
    """Shift d from the limit load to the limit rate, per slope: the share is a mean over loads as requests
    meet them.

    Solves E of logistic(logit a + slope (d + ln L)) = a, the share that is `allowed`, by bisection. L has
    variance `load_var` and the skewness of a Poisson count; its mean is 1 + `arrivals_var`, the variance that
    arrivals alone cause, for a load meets the more requests the more of them it is made of.
    """
    deviation = math.sqrt(load_var) * _NODES + load_var * (_NODES**2 - 1) / 6
    loads = np.log(np.maximum(1 + arrivals_var + deviation, LEAST_LOAD))
    odds = np.log(allowed / (1 - np.asarray(allowed)))[..., None] + slopes[:, None] * loads
    low, high = (np.full(len(slopes), end) for end in SHIFT_RANGE)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        # A sum and no matrix product: the threads of a BLAS cost more than they do, and the sends their core.
        share = (logistic(odds + (slopes * middle)[:, None]) * _WEIGHTS).sum(axis=1)
        low, high = np.where(share < allowed, middle, low), np.where(share < allowed, high, middle)
    shift: Floats = (low + high) / 2
    return shift


def logistic(x: Floats) -> Floats:
    """1 / (1 + e^-x), without overflow."""
    share: Floats = 0.5 + 0.5 * np.tanh(x / 2)
    return share
