"""One answer from several: estimates with intervals pooled by random effects, and repeats by Student's t."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.stats.estimate import Estimate
from analysis.stats.quantiles import Floats

BETWEEN_SCALE = 0.035
"""Scale of the half-Cauchy prior on the sd between parts (of ln QPS), which is its median.

Our choice. Three repeats of one load on MI325X nodes differed by 0.2, 0.9, 2.0 and 7.5 % for four models
(the MI325X paper): a tail as heavy as that. Simulated cover: docs/search_accuracy.md.
"""
_PART = (np.arange(300) + 0.5) / 300
BETWEEN, _WIDTH = 2.0 * _PART**3, _PART**2
"""Values of that sd: fine where parts agree, and so far that no two capacities differ by more."""
SPAN_SDS = 8.0
HALVINGS = 45
COMMON = 0.3
"""Share of a deployment's own variance that all deployments have in common: the minutes of each may have been
good times, and a search errs alike each time. Beside a noisy neighbour pools of two and four searches of 15
minutes certify too much in 1 of 48 and 0 of 24 with it, in 2 of 24 and 2 of 12 without."""
TAIL = 0.025
CERTIFIED = 0.05


@dataclass(frozen=True, slots=True)
class Measured:
    """One part's answer in QPS per node, and the sd of its natural logarithm."""

    qps: float
    sd: float

    @staticmethod
    def from_estimate(qps: Estimate) -> "Measured":
        """The answer with this interval, taken as normal in ln. Raises ValueError for an open end."""
        return Measured(qps.value, qps.ln_sd)


@dataclass(frozen=True, slots=True)
class Pooled:
    """The mean over parts in QPS per node, with its certified rate.

    `between` is the sd between parts and `effects` each part's distance from the mean of these parts, drawn
    towards it by what its own noise explains; both of ln QPS, that is as shares.
    """

    qps: Estimate
    between: Estimate
    effects: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """The mean of repeats with its interval by the t-distribution; the certified rate is its lower 5 % end.

    `variation` is their coefficient of variation (sd over mean) as a share.
    """

    mean: Estimate
    variation: Estimate


def pooled(estimates: Sequence[Measured], common: float = 0.0) -> Pooled:
    """Random effects over parts that differ by more than their noise: theta_i ~ N(mu, tau), y_i ~ N(theta_i,
    sd_i), all in ln.

    mu is flat, tau on a grid under its prior; a mixture of normals over tau answers every question
    (Gelman et al., Bayesian Data Analysis, 5.4). A `common` share of sd_i^2 is no noise of one part: the mean
    over parts has it too. Raises ValueError for fewer than two.
    """
    if len(estimates) < 2:
        raise ValueError("pooling needs at least two estimates")
    y = np.log([estimate.qps for estimate in estimates])
    own = np.array([estimate.sd**2 for estimate in estimates])
    weights = 1 / (own[:, None] + BETWEEN**2)
    mean = (weights * y[:, None]).sum(axis=0) / weights.sum(axis=0)
    sd = weights.sum(axis=0) ** -0.5
    log_mass = (
        np.log(_WIDTH)
        - np.log1p((BETWEEN / BETWEEN_SCALE) ** 2)
        + np.log(sd)
        + 0.5 * np.log(weights).sum(axis=0)
    )
    log_mass -= 0.5 * (weights * (y[:, None] - mean) ** 2).sum(axis=0)
    mass = np.exp(log_mass - log_mass.max())
    mass /= mass.sum()
    kept = BETWEEN**2 * weights
    # Of each part, its own value minus the mean of all of them.
    contrast = np.eye(len(y)) - 1 / len(y)
    apart = contrast @ (kept * y[:, None] + (1 - kept) * mean)
    spread = contrast**2 @ (own[:, None] * kept) + (contrast @ (1 - kept) * sd) ** 2
    return Pooled(
        qps=_certified(lambda q: math.exp(_mixture(q, mass, mean, np.sqrt(sd**2 + common * own.mean())))),
        between=_figure(lambda q: float(np.interp(q, np.cumsum(mass) - mass / 2, BETWEEN))),
        effects=tuple(_effect(mass, at, width) for at, width in zip(apart, np.sqrt(spread), strict=True)),
    )


def repeated(values: Sequence[float]) -> Repeated:
    """Mean, interval and coefficient of variation of independent repeats (plain, as the MI325X paper's).

    The values are rates or times: an end of the mean's interval that would be negative is 0. The interval of
    the variation is the chi-square interval of the sd over the mean: it leaves out the mean's own error,
    which at a variation of some percent is small beside it. Raises ValueError for fewer than two.
    """
    if len(values) < 2:
        raise ValueError("an interval over repeats needs at least two")
    mean, sd, df = float(np.mean(values)), float(np.std(values, ddof=1)), len(values) - 1
    error = sd / math.sqrt(len(values))

    def below(q: float) -> float:
        return max(0.0, mean + student_t(q, df) * error)

    return Repeated(
        mean=_certified(below),
        variation=Estimate(
            sd / mean, *(sd / mean * math.sqrt(df / chi_square(q, df)) for q in (1 - TAIL, TAIL))
        ),
    )


def student_t(q: float, df: int) -> float:
    """Quantile of Student's t: t = sqrt(df) tan(a) makes the density cos(a)^(df - 1)."""
    angle = np.linspace(-math.pi / 2, math.pi / 2, 40_001)
    return math.sqrt(df) * math.tan(_quantile(q, angle, np.cos(angle) ** (df - 1)))


def chi_square(q: float, df: int) -> float:
    """Quantile of chi-square, integrated over the logarithm of its argument."""
    log_x = np.linspace(-40.0, math.log(df + 20 * math.sqrt(2 * df)), 40_001)
    return math.exp(_quantile(q, log_x, np.exp(df / 2 * (log_x - math.log(df)) - (np.exp(log_x) - df) / 2)))


def _quantile(q: float, at: Floats, density: Floats) -> float:
    """The `q` quantile of a density known at equal steps (trapezoids)."""
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return float(np.interp(q, below / below[-1], at))


def _figure(quantile: Callable[[float], float]) -> Estimate:
    return Estimate(quantile(0.5), quantile(TAIL), quantile(1 - TAIL))


def _certified(quantile: Callable[[float], float]) -> Estimate:
    return replace(_figure(quantile), certified=quantile(CERTIFIED))


def _effect(mass: Floats, mean: Floats, sd: Floats) -> Estimate:
    # With no spread between parts at all there is no effect: the normal of width 0.
    return _figure(lambda q: _mixture(q, mass, mean, np.maximum(sd, 1e-9)))


def _mixture(q: float, mass: Floats, mean: Floats, sd: Floats) -> float:
    """The `q` quantile of a mixture of normals, by bisection."""
    low, high = float((mean - SPAN_SDS * sd).min()), float((mean + SPAN_SDS * sd).max())
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = [math.erf(z) for z in ((middle - mean) / (sd * math.sqrt(2))).tolist()]
        low, high = (middle, high) if float(mass @ below) / 2 + 0.5 < q else (low, middle)
    return (low + high) / 2
