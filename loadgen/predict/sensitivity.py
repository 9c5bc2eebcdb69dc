"""Sensitivity to each constant: its elasticity and its share of the variance, to decide what to measure
first.

Knows the constants' distributions and a prediction to vary; knows no engine and no unit of a constant.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from conf.constants import constants
from conf.specs.experiment import Constant
from loadgen.predict.capacity import PredictedCapacity
from loadgen.predict.draws import drawn
from loadgen.predict.uncertainty import MANY_DRAWS, Z95, ParallelMap, varied

NUDGE = math.log(1.1)
"""Elasticities span 10 % less to 10 % more of a constant: well above the noise of a rough run."""


@dataclass(frozen=True, slots=True)
class ConstantSensitivity:
    """One constant's effect on the answer.

    `elasticity` is d ln QPS / d ln constant. `at_low_qps` and `at_high_qps` are the answers at the ends of
    its interval, the other constants at their values. `share` is its part of the variance of ln QPS when all
    constants are drawn together, correlated as their fit says: the shares add up to 1, and one is below 0 if
    constants that move with it undo more than it does.
    """

    path: str
    constant: Constant
    elasticity: float
    at_low_qps: float | None = None
    at_high_qps: float | None = None
    share: float = 0.0

    @property
    def ln_sd(self) -> float:
        """The sd of ln QPS from this constant alone."""
        if self.at_low_qps is None or self.at_high_qps is None:
            return 0.0
        return abs(math.log(self.at_high_qps / self.at_low_qps)) / 2 / Z95


def sensitivities(found: PredictedCapacity, parallel_map: ParallelMap = map) -> list[ConstantSensitivity]:
    """Every constant's sensitivity, the largest share of the variance first."""
    known = {path: it for path, it in constants(found.simulator.experiment).items() if it.value > 0}
    wanted = [(path, value) for path, it in known.items() for value in _ends(it)]
    answers = parallel_map(
        partial(varied, found.simulator, found.quick.root), [{path: value} for path, value in wanted]
    )
    ln_qps = {key: ln for key, (ln, _, _) in zip(wanted, answers, strict=True)}
    rows = _shared(found, [_sensitivity(path, it, ln_qps, found) for path, it in known.items()])
    return sorted(rows, key=lambda row: (row.share, row.ln_sd, abs(row.elasticity)), reverse=True)


def _ends(constant: Constant) -> Sequence[float]:
    """The values to simulate: nudged to both sides, and the ends of the interval."""
    nudged = [constant.value * math.exp(-NUDGE), constant.value * math.exp(NUDGE)]
    if constant.low is None or constant.high is None:
        return nudged
    return [*nudged, constant.low, constant.high]


def _sensitivity(
    path: str, constant: Constant, ln_qps: Mapping[tuple[str, float], float], found: PredictedCapacity
) -> ConstantSensitivity:
    less, more, *ends = (ln_qps[path, value] for value in _ends(constant))
    elasticity = (more - less) / 2 / NUDGE
    # The rough run's own error drops out: the answer is moved by what the rough run is.
    shift = math.log(found.answer.root.rate_qps / found.quick.root.rate_qps)
    return ConstantSensitivity(path, constant, elasticity, *(math.exp(ln + shift) for ln in ends))


def _shared(found: PredictedCapacity, rows: Sequence[ConstantSensitivity]) -> list[ConstantSensitivity]:
    """The rows with their shares: covariance of one constant's effect with the sum of all, over its variance.

    A constant moves ln QPS along the lines from its value to the ends of its interval.
    """
    sets = drawn(found.simulator.experiment, MANY_DRAWS)
    if not sets:
        return list(rows)
    ln_qps = math.log(found.answer.root.rate_qps)
    moved = {row.path: _moved(row, ln_qps, [one[row.path] for one in sets]) for row in rows if row.ln_sd}
    if not moved:
        return list(rows)
    total = np.sum(list(moved.values()), axis=0)
    total -= total.mean()
    variance = float(total @ total)
    return [
        replace(row, share=float(moved[row.path] @ total) / variance) if row.path in moved else row
        for row in rows
    ]


def _moved(row: ConstantSensitivity, ln_qps: float, values: Sequence[float]) -> np.ndarray:
    ln = np.log(np.array(values) / row.constant.value)
    ends = (row.constant.low, row.at_low_qps), (row.constant.high, row.at_high_qps)
    below, above = (
        (math.log(qps) - ln_qps) / math.log(end / row.constant.value)
        if end and qps and end != row.constant.value
        else 0.0
        for end, qps in ends
    )
    return np.where(ln < 0, below, above) * ln
