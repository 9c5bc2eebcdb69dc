"""How the engine model's answer moves with its constants: an interval by sampling, and each constant's part.

Knows the constants' distributions and a forecast to vary; knows no engine and no unit of a constant.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.root import Limit
from conf.constants import constants, covariance, replaced
from conf.schema import Constant, Experiment
from loadgen.bench import Bench
from loadgen.crossing import Crossing
from loadgen.forecast import Forecast, solve

Floats = NDArray[np.float64]
Spread = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""`map`, or that of a pool of processes."""

DRAWS = 48
SEED = 0
"""Draws of constants are no part of the traffic: experiment.seed does not move them."""
MANY_DRAWS, DRAWS_PER_CONSTANT = 2000, 2
"""Draws of the response that was learnt, and how many it takes to learn it."""
ROUGH = 0.01
"""Tolerance of ln rate; the interval of the default model is some 50 times as wide."""
NUDGE = math.log(1.1)
"""Elasticities are from 10 % less to 10 % more of a constant: well above the noise of a rough run."""
NORMAL = NormalDist()
Z95 = NORMAL.inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """Answers under drawn constants over that under their values, in ln, and which limit bound in each.

    `sampled` are the config keys that were drawn; without any the draws are none. `open_below` and
    `open_above` of them lie beyond an end of the search and stand there as that end. The interval is that of
    `smoothed`.
    """

    sampled: tuple[str, ...]
    ln_ratios: tuple[float, ...] = ()
    bindings: tuple[Limit, ...] = ()
    open_below: int = 0
    open_above: int = 0
    smoothed: tuple[float, ...] = ()

    def ends(self, share: float, noise: float) -> float | None:
        """ln distance from the estimate to the quantile `share`, the Monte Carlo noise (95 %) included.

        None where that quantile lies beyond an end of the search.
        """
        side = 1 if share > 0.5 else -1
        beyond = self.open_above if side > 0 else self.open_below
        if beyond and beyond >= min(share, 1 - share) * len(self.ln_ratios):
            return None
        away = max(0.0, side * drawn_quantile(self.smoothed, share))
        return side * math.hypot(away, noise / Z95 * NORMAL.inv_cdf(max(share, 1 - share)))


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """One constant's hold on the answer.

    `elasticity` is the change of ln QPS by that of ln constant; `at_low_qps` and `at_high_qps` are the
    answers at the ends of its interval, the others at their values; `share` is its part of the sum of all
    variances.
    """

    path: str
    constant: Constant
    elasticity: float
    at_low_qps: float | None = None
    at_high_qps: float | None = None
    share: float = 0.0

    @property
    def ln_sd(self) -> float:
        """The sd of ln QPS that this constant alone gives."""
        if self.at_low_qps is None or self.at_high_qps is None:
            return 0.0
        return abs(math.log(self.at_high_qps / self.at_low_qps)) / 2 / Z95


def uncertainty(found: Forecast, draws: int = DRAWS, spread: Spread = map) -> Uncertainty:
    """The forecast again under `draws` sets of constants, on the same requests."""
    sets = drawn(found.bench.experiment, draws)
    if not sets:
        return Uncertainty(())
    answers = list(spread(partial(_varied, found.bench, found.quick.crossing), sets))
    base = math.log(found.quick.crossing.rate_qps)
    ln_ratios = tuple(ln_qps - base for ln_qps, _, _ in answers)
    below, above = (sum(side == end for _, _, side in answers) for end in (-1, 1))
    smooth = not below and not above and draws >= DRAWS_PER_CONSTANT * (len(sets[0]) + 1)
    smoothed = _smoothed(sets, ln_ratios, drawn(found.bench.experiment, MANY_DRAWS)) if smooth else ln_ratios
    bindings = tuple(binding for _, binding, _ in answers)
    return Uncertainty(tuple(sets[0]), ln_ratios, bindings, below, above, smoothed)


def _smoothed(
    sets: Sequence[Mapping[str, float]], ln_ratios: Sequence[float], many: Sequence[Mapping[str, float]]
) -> tuple[float, ...]:
    """What so many more draws would give: the draws' response in ln, and their residuals in turn.

    It is a parabola of a linear combination: near to straight, and what slows a service most slows it less
    and less. The ends of an interval from a few draws alone would rest on two or three of them.
    """
    few_ln, many_ln = (np.log([list(values.values()) for values in each]) for each in (sets, many))
    few, more = (np.column_stack([np.ones(len(ln)), ln - few_ln.mean(axis=0)]) for ln in (few_ln, many_ln))
    response, *_ = np.linalg.lstsq(few, np.array(ln_ratios), rcond=None)
    bend = np.polyfit(few @ response, ln_ratios, 2)
    residuals = ln_ratios - np.polyval(bend, few @ response)
    residuals *= math.sqrt(len(few) / (len(few) - few.shape[1] - 1))
    return tuple((np.polyval(bend, more @ response) + np.resize(residuals, len(more))).tolist())


def held(bench: Bench, rate_qps: float, draws: int = DRAWS, spread: Spread = map) -> list[bool]:
    """Whether both bounds are kept at a rate, under each of `draws` sets of constants."""
    return list(spread(partial(_held, bench, rate_qps), drawn(bench.experiment, draws)))


def sensitivities(found: Forecast, spread: Spread = map) -> list[Sensitivity]:
    """Every constant's part in the answer, the largest part of the interval first."""
    known = {path: it for path, it in constants(found.bench.experiment).items() if it.value > 0}
    wanted = [(path, value) for path, it in known.items() for value in _ends(it)]
    answers = spread(
        partial(_varied, found.bench, found.quick.crossing), [{path: value} for path, value in wanted]
    )
    ln_qps = {key: ln for key, (ln, _, _) in zip(wanted, answers, strict=True)}
    rows = [_sensitivity(path, it, ln_qps, found) for path, it in known.items()]
    total = sum(row.ln_sd**2 for row in rows)
    rows = [_with_share(row, total) for row in rows]
    return sorted(rows, key=lambda row: (row.ln_sd, abs(row.elasticity)), reverse=True)


def drawn_quantile(ln_ratios: Sequence[float], share: float) -> float:
    """A quantile of stratified draws, each of which stands for the middle of its stratum; 0 of none."""
    return float(np.quantile(np.array(ln_ratios), share, method="hazen")) if len(ln_ratios) else 0.0


def drawn(experiment: Experiment, count: int) -> list[dict[str, float]]:
    """Values of the uncertain constants, by config key: `count` sets.

    Each constant's draws are stratified (a Latin hypercube) and depend on its key alone, so that two
    experiments with a constant in common see the same errors of it. Those of a calibration are correlated as
    it says.
    """
    unsure = uncertain(experiment)
    normal = {path: _normals(path, count) for path in unsure}
    ln = {path: _ln_error(it, normal[path]) for path, it in unsure.items()}
    known = covariance(experiment)
    if known:
        variances, axes = np.linalg.eigh(np.array(known.rows))
        root = (axes * np.sqrt(np.maximum(variances, 0.0))) @ axes.T
        together = np.array([normal[path] for path in known.paths])
        ln |= dict(zip(known.paths, root @ together, strict=True))
    return [
        {path: it.value * math.exp(ln[path][draw]) for path, it in unsure.items()}
        for draw in range(count if unsure else 0)
    ]


def uncertain(experiment: Experiment) -> dict[str, Constant]:
    """The constants with an interval, by config key."""
    return {path: it for path, it in constants(experiment).items() if any(it.ln_sd)}


def _normals(path: str, count: int) -> Floats:
    rng = np.random.default_rng([SEED, zlib.crc32(path.encode())])
    shares = (rng.permutation(count) + rng.random(count)) / count
    return np.array([NORMAL.inv_cdf(share) for share in shares.tolist()])


def _ln_error(constant: Constant, normal: Floats) -> Floats:
    """The split normal of a constant."""
    below, above = constant.ln_sd
    return np.where(normal < 0, below, above) * normal


def _held(bench: Bench, rate_qps: float, values: Mapping[str, float]) -> bool:
    point = bench.varied(replaced(bench.experiment, values)).at(rate_qps)
    return point.excess(point.binding) <= 0


def _varied(bench: Bench, base: Crossing, values: Mapping[str, float]) -> tuple[float, Limit, int]:
    """ln QPS under other constants, what binds, and the side of an open end."""
    changed = solve(bench.varied(replaced(bench.experiment, values)), base.rate_qps, base.slope, ROUGH)
    return math.log(changed.crossing.rate_qps), changed.point.binding, changed.crossing.side


def _ends(constant: Constant) -> Sequence[float]:
    """The values at which the answer is wanted: nudged to both sides, and the ends of the interval."""
    nudged = [constant.value * math.exp(-NUDGE), constant.value * math.exp(NUDGE)]
    if constant.low is None or constant.high is None:
        return nudged
    return [*nudged, constant.low, constant.high]


def _sensitivity(
    path: str, constant: Constant, ln_qps: Mapping[tuple[str, float], float], found: Forecast
) -> Sensitivity:
    less, more, *ends = (ln_qps[path, value] for value in _ends(constant))
    elasticity = (more - less) / 2 / NUDGE
    # The rough run's own error drops out: the answer is moved by what the rough run is.
    shift = math.log(found.answer.crossing.rate_qps / found.quick.crossing.rate_qps)
    return Sensitivity(path, constant, elasticity, *(math.exp(ln + shift) for ln in ends))


def _with_share(row: Sensitivity, total: float) -> Sensitivity:
    share = row.ln_sd**2 / total if total else 0.0
    return Sensitivity(row.path, row.constant, row.elasticity, row.at_low_qps, row.at_high_qps, share)
