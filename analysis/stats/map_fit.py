"""Least squares in logarithms against a prior, by damped Gauss-Newton.

The scatter of the data around the model is estimated with the fit, so that it says by itself how much the
prior counts beside the data.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from analysis.stats.quantiles import Floats as Floats

Flags = NDArray[np.bool_]
Predict = Callable[[Floats], Floats]
"""ln of the measurements that the ln of the parameters predict."""

STEP = 0.03
"""Half the difference of a numeric derivative (ln). Latencies jump by whole engine steps, which a much
smaller one would take for slope."""
ITERATIONS, TRIALS = 25, 8
ROUNDS = 2
"""Re-estimates of the scatter until it has settled."""
FIRST_SCATTER, LEAST_SCATTER = 0.1, 0.003
"""Start of its estimate (ln), and its least value: no engine model is truer, however well a few numbers
fit."""
ENOUGH = 1e-4
"""Relative gain in the loss below which an optimum is reached."""
Z95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class ParameterPrior:
    """ln of each parameter ~ normal around `centre`, with an sd of its own to either side.

    The fit goes by z, sds from the centre: a step across a centre then never costs more than one that stays,
    however tight that side is.
    """

    centre: Floats
    below: Floats
    above: Floats

    def ln(self, z: Floats) -> Floats:
        return self.centre + self.sd(z) * z

    def z(self, ln: Floats) -> Floats:
        off = ln - self.centre
        return off / self.sd(off)

    def sd(self, z: Floats) -> Floats:
        return np.where(z < 0, self.below, self.above)


@dataclass(frozen=True, slots=True)
class ParameterFit:
    """`at`, `low` and `high`: ln of the parameters and of the ends of their 95 % intervals.

    `scatter` is the sd of one residual (ln); `learnt` the share of each prior variance that the data took
    away: near 0 the data do not identify it. Parameters that are `held` stayed at the centre. `stalled` says
    that the descent from the prior's centre gained nothing. `correlation` is between the parameters.
    """

    at: Floats
    low: Floats
    high: Floats
    correlation: Floats
    residuals: Floats
    scatter: float
    learnt: Floats
    held: Flags
    stalled: bool

    @property
    def rms(self) -> float:
        """Root of the mean squared log error."""
        return math.sqrt(float(np.mean(self.residuals**2)))

    @property
    def sd(self) -> Floats:
        """Mean of both sides (ln)."""
        deviation: Floats = (self.high - self.low) / (2 * Z95)
        return deviation

    @property
    def covariance(self) -> Floats:
        matrix: Floats = self.correlation * np.outer(self.sd, self.sd)
        return matrix


@dataclass(frozen=True, slots=True)
class _Problem:
    """A fit's residuals and their slopes by z; `noise` is the sampling error of each figure."""

    predict: Predict
    measured: Floats
    prior: ParameterPrior
    noise: Floats

    def residuals(self, z: Floats) -> Floats:
        return self.predict(self.prior.ln(z)) - self.measured

    def loss(self, z: Floats, reach: Floats) -> float:
        return float(np.sum((self.residuals(z) / reach) ** 2) + np.sum(z**2))

    def slope(self, z: Floats) -> Floats:
        """Derivatives of the residuals (rows) by z (columns)."""
        at = self.prior.ln(z)
        ends = [(self.predict(at + step), self.predict(at - step)) for step in STEP * np.eye(len(z))]
        by_ln = np.column_stack([(high - low) / (2 * STEP) for high, low in ends])
        slope: Floats = by_ln * self.prior.sd(z)
        return slope

    def scatter(self, residuals: Floats, slope: Floats, reach: Floats) -> float:
        """sd of the residuals beyond their noise, for as many degrees of freedom as the fit left.

        Parameters that the prior holds take less than one each (a ridge's effective number).
        """
        slope = slope / reach[:, None]
        information = slope.T @ slope
        used = float(np.trace(np.linalg.solve(information + np.eye(len(information)), information)))
        left = max(1.0, len(residuals) - used) / len(residuals)
        beyond = float(np.mean(residuals**2)) / left - float(np.mean(self.noise**2))
        return math.sqrt(max(LEAST_SCATTER**2, beyond))


def fit(
    predict: Predict,
    measured: Floats,
    prior: ParameterPrior,
    starts: Sequence[Floats] = (),
    noise: Floats | None = None,
    enough: float = 0.0,
) -> ParameterFit:
    """The most likely parameters for `measured` (ln), from the best of the prior's centre and `starts` (ln).

    `noise` is the sampling error of each figure (ln), beside which the scatter counts. A loss with steps has
    dimples; several starts keep out of them. Parameters learnt to a share below `enough` go back to the
    centre and the others are fitted beside them, with the uncertainty that the former leave; `learnt` is the
    least that was found meanwhile.
    """
    noise = np.zeros_like(measured) if noise is None else noise
    problem = _Problem(predict, measured, prior, noise)
    reach, free = np.hypot(FIRST_SCATTER, noise), np.ones(len(prior.centre), dtype=bool)
    ends = [_descend(problem, start, reach, free) for start in [0 * prior.centre, *map(prior.z, starts)]]
    best = min(ends, key=lambda end: end.loss).z
    for _ in range(ROUNDS):
        scatter = problem.scatter(problem.residuals(best), problem.slope(best), reach)
        reach = np.hypot(scatter, noise)
        best = _descend(problem, best, reach, free).z
    found = _around(problem, best, reach, ~free, ends[0].stalled)
    while (found.held != (held := found.held | (found.learnt < enough))).any():
        best = _descend(problem, np.where(held, 0.0, best), reach, ~held).z
        again = _around(problem, best, reach, held, ends[0].stalled)
        found = replace(again, learnt=np.minimum(again.learnt, found.learnt))
    return found


def around(
    predict: Predict, measured: Floats, prior: ParameterPrior, at: Floats, noise: Floats
) -> ParameterFit:
    """The normal around the fixed parameters `at` (ln), given `measured` and `prior`.

    For parameters that were held in a fit beside those that were fitted: the data know less of the latter by
    what the former leave open, and the correlations say which go together.
    """
    problem = _Problem(predict, measured, prior, noise)
    reach = np.hypot(LEAST_SCATTER, noise)
    return _around(problem, prior.z(at), reach, np.zeros(len(at), dtype=bool), False)


def _around(problem: _Problem, z: Floats, reach: Floats, held: Flags, stalled: bool) -> ParameterFit:
    """The fit with optimum `z`: a normal in z, and in ln a split normal because of the prior's two sides."""
    prior, residuals, slope = problem.prior, problem.residuals(z), problem.slope(z)
    scatter = problem.scatter(residuals, slope, reach)
    slope = slope / np.hypot(scatter, problem.noise)[:, None]
    covariance = np.asarray(np.linalg.inv(slope.T @ slope + np.eye(len(z))), dtype=np.float64)
    variance = np.diag(covariance)
    sd = np.sqrt(variance)
    low, high = (prior.ln(z + side * Z95 * sd) for side in (-1, 1))
    correlation: Floats = covariance / np.outer(sd, sd)
    return ParameterFit(prior.ln(z), low, high, correlation, residuals, scatter, 1 - variance, held, stalled)


@dataclass(frozen=True, slots=True)
class _End:
    """The nearest optimum and its loss; `stalled` if no step gained anything."""

    z: Floats
    loss: float
    stalled: bool


def _descend(problem: _Problem, start: Floats, reach: Floats, free: Flags) -> _End:
    """The nearest optimum among the `free` parameters; `reach` is the sd of each residual."""
    z, damping = start, 1e-2
    first = least = problem.loss(z, reach)
    for _ in range(ITERATIONS):
        slope = problem.slope(z) / reach[:, None] * free
        normal = slope.T @ slope + np.eye(len(z))
        pull = -slope.T @ (problem.residuals(z) / reach) - z * free
        for _ in range(TRIALS):
            trial = z + np.linalg.solve(normal + damping * np.diag(np.diag(normal)), pull)
            loss = problem.loss(trial, reach)
            if loss < least:
                break
            damping *= 5
        else:
            break
        gained, z, least, damping = least - loss, trial, loss, damping / 10
        if gained < ENOUGH * least:
            break
    return _End(z, least, first - least <= ENOUGH * first)
