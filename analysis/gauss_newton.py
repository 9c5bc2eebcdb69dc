"""Least squares in logarithms against a prior, by damped Gauss-Newton; knows no constants and no engine.

The scatter of the data around the model is estimated with the fit, so that it says by itself how much the
prior counts beside the data.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Predict = Callable[[Floats], Floats]
"""ln of what would be measured, given the ln of the parameters."""

STEP = 0.03
"""Half the difference of a numeric derivative (ln). Latencies jump by whole engine steps, which a much
smaller one would take for slope."""
ITERATIONS, TRIALS = 25, 8
ROUNDS = 2
"""Times that the scatter is estimated anew, after which it has settled."""
FIRST_SCATTER, LEAST_SCATTER = 0.1, 0.003
"""Where its estimate begins (ln), and the truest an engine model is, however well a few numbers are met."""
ENOUGH = 1e-4
"""Relative gain in the loss below which an optimum is reached."""


@dataclass(frozen=True, slots=True)
class Prior:
    """ln of each parameter ~ normal around `centre`, with an sd of its own to either side."""

    centre: Floats
    below: Floats
    above: Floats

    def pull(self, at: Floats) -> Floats:
        """Sds that each parameter lies away from its centre, with the sign."""
        off = at - self.centre
        return off / np.where(off < 0, self.below, self.above)

    def sd(self, at: Floats) -> Floats:
        return np.where(at < self.centre, self.below, self.above)


@dataclass(frozen=True, slots=True)
class Fit:
    """`at`: ln of the parameters, `covariance` theirs, `scatter`: sd of one residual (ln).

    `learnt` is the share of each prior variance that the data took away: near 0 the data do not identify it.
    """

    at: Floats
    covariance: Floats
    residuals: Floats
    scatter: float
    learnt: Floats

    @property
    def rms(self) -> float:
        """Root of the mean squared log error."""
        return math.sqrt(float(np.mean(self.residuals**2)))

    @property
    def sd(self) -> Floats:
        found: Floats = np.sqrt(np.diag(self.covariance))
        return found


def fit(
    predict: Predict,
    measured: Floats,
    prior: Prior,
    starts: Sequence[Floats] = (),
    noise: Floats | None = None,
) -> Fit:
    """The most likely parameters for `measured` (ln), from the best of the prior's centre and `starts`.

    `noise` is the sampling error of each figure (ln), beside which the scatter counts. A loss with steps has
    dimples; several starts keep out of them.
    """
    noise = np.zeros_like(measured) if noise is None else noise
    reach = np.hypot(FIRST_SCATTER, noise)
    best = min(
        (_descend(predict, measured, prior, start, reach) for start in [prior.centre, *starts]),
        key=lambda end: end[1],
    )[0]
    for _ in range(ROUNDS):
        scatter = _scatter(predict(best) - measured, _slope(predict, best), prior.sd(best), reach, noise)
        reach = np.hypot(scatter, noise)
        best = _descend(predict, measured, prior, best, reach)[0]
    slope, sd, residuals = _slope(predict, best), prior.sd(best), predict(best) - measured
    scatter = _scatter(residuals, slope, sd, reach, noise)
    slope = slope / np.hypot(scatter, noise)[:, None]
    covariance: Floats = np.asarray(np.linalg.inv(slope.T @ slope + np.diag(sd**-2)), dtype=np.float64)
    learnt: Floats = 1 - np.diag(covariance) / sd**2
    return Fit(best, covariance, residuals, scatter, learnt)


def _descend(
    predict: Predict, measured: Floats, prior: Prior, start: Floats, reach: Floats
) -> tuple[Floats, float]:
    """The nearest optimum and its loss; `reach` is the sd of each residual."""

    def loss(at: Floats) -> float:
        return float(np.sum(((predict(at) - measured) / reach) ** 2) + np.sum(prior.pull(at) ** 2))

    at, damping = start, 1e-2
    least = loss(at)
    for _ in range(ITERATIONS):
        slope = _slope(predict, at) / reach[:, None]
        weight = prior.sd(at) ** -2
        normal = slope.T @ slope + np.diag(weight)
        pull = slope.T @ ((measured - predict(at)) / reach) + weight * (prior.centre - at)
        for _ in range(TRIALS):
            trial = at + np.linalg.solve(normal + damping * np.diag(np.diag(normal)), pull)
            found = loss(trial)
            if found < least:
                break
            damping *= 5
        else:
            break
        gained, at, least, damping = least - found, trial, found, damping / 10
        if gained < ENOUGH * least:
            break
    return at, least


def _slope(predict: Predict, at: Floats) -> Floats:
    """Derivatives of the predictions (rows) by the parameters (columns)."""
    ends = [(predict(at + step), predict(at - step)) for step in STEP * np.eye(len(at))]
    return np.column_stack([(high - low) / (2 * STEP) for high, low in ends])


def _scatter(residuals: Floats, slope: Floats, prior_sd: Floats, reach: Floats, noise: Floats) -> float:
    """sd of the residuals beyond their noise, for as many degrees of freedom as the fit left.

    Parameters that the prior holds take less than one each (a ridge's effective number).
    """
    slope = slope / reach[:, None]
    information = slope.T @ slope
    used = float(np.trace(np.linalg.solve(information + np.diag(prior_sd**-2), information)))
    left = max(1.0, len(residuals) - used) / len(residuals)
    beyond = float(np.mean(residuals**2)) / left - float(np.mean(noise**2))
    return math.sqrt(max(LEAST_SCATTER**2, beyond))
