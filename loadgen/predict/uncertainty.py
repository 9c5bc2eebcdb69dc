"""Interval of the engine model's answer from the uncertainty of its constants, and each one's share."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from analysis.results.predictions import SensitivityRow
from conf.constants import constants, replaced
from conf.specs.bounds import Limit
from conf.specs.experiment import Constant
from loadgen.predict.capacity import PredictedCapacity, solve
from loadgen.predict.draws import NORMAL, drawn
from loadgen.predict.operating_point import RateSimulator
from loadgen.predict.root_finding import RateRoot

ParallelMap = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""`map`, or that of a pool of processes."""

DRAWS = 48
MANY_DRAWS, DRAWS_PER_CONSTANT = 2000, 2
"""Draws of the fitted response, and the draws per constant that it takes to fit it."""
ROUGH = 0.01
"""Tolerance of ln rate; the interval of the default model is some 50 times as wide."""
Z95 = NORMAL.inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """ln ratios of answers under drawn constants (`sampled`) to that under their values, and the binding
    limits.

    Draws beyond an end of the search, `open_below` or `open_above`, stand as that end. The interval comes
    from `smoothed`.
    """

    sampled: tuple[str, ...]
    ln_ratios: tuple[float, ...] = ()
    bindings: tuple[Limit, ...] = ()
    open_below: int = 0
    open_above: int = 0
    smoothed: tuple[float, ...] = ()

    def ends(self, share: float, noise: float) -> float | None:
        """ln distance from the estimate to the quantile `share`, Monte Carlo noise (95 %) included.

        None if that quantile lies beyond an end of the search.
        """
        side = 1 if share > 0.5 else -1
        beyond = self.open_above if side > 0 else self.open_below
        if beyond and beyond >= min(share, 1 - share) * len(self.ln_ratios):
            return None
        return interval_end(self.smoothed, share, noise / Z95 * NORMAL.inv_cdf(max(share, 1 - share)))


def uncertainty(
    prediction: PredictedCapacity, draws: int = DRAWS, parallel_map: ParallelMap = map
) -> Uncertainty:
    """The prediction again under `draws` sets of constants, on the same requests."""
    sets = drawn(prediction.simulator.experiment, draws)
    if not sets:
        return Uncertainty(())
    answers = list(parallel_map(partial(varied, prediction.simulator, prediction.quick.root), sets))
    base = math.log(prediction.quick.root.rate_qps)
    ln_ratios = tuple(ln_qps - base for ln_qps, _, _ in answers)
    below, above = (sum(side == end for _, _, side in answers) for end in (-1, 1))
    many = [] if below or above else drawn(prediction.simulator.experiment, MANY_DRAWS)
    more = smoothed(sets, ln_ratios, many)
    bindings = tuple(binding for _, binding, _ in answers)
    return Uncertainty(tuple(sets[0]), ln_ratios, bindings, below, above, more)


def smoothed(
    sets: Sequence[Mapping[str, float]], ln_ratios: Sequence[float], many: Sequence[Mapping[str, float]]
) -> tuple[float, ...]:
    """Many more draws by the fitted response in ln, each with one of its residuals.

    The response is a parabola of a linear combination: nearly straight, and flatter as a service gets slower.
    The ends of an interval from a few draws alone would rest on two or three of them. With too few draws for
    the number of constants, or without `many`, the draws are returned as they are.
    """
    if not many or len(sets) < DRAWS_PER_CONSTANT * (len(sets[0]) + 1):
        return tuple(ln_ratios)
    few_ln, many_ln = (np.log([list(values.values()) for values in each]) for each in (sets, many))
    few, more = (np.column_stack([np.ones(len(ln)), ln - few_ln.mean(axis=0)]) for ln in (few_ln, many_ln))
    response, *_ = np.linalg.lstsq(few, np.array(ln_ratios), rcond=None)
    bend = np.polyfit(few @ response, ln_ratios, 2)
    residuals = ln_ratios - np.polyval(bend, few @ response)
    residuals *= math.sqrt(len(few) / (len(few) - few.shape[1] - 1))
    return tuple((np.polyval(bend, more @ response) + np.resize(residuals, len(more))).tolist())


def drawn_quantile(ln_ratios: Sequence[float], share: float) -> float:
    """A quantile of stratified draws, each the middle of its stratum; 0 without draws."""
    return float(np.quantile(np.array(ln_ratios), share, method="hazen")) if len(ln_ratios) else 0.0


def interval_end(moved: Sequence[float], share: float, noise: float) -> float:
    """ln distance to the quantile `share` of draws that have `moved` the answer, with independent noise."""
    side = 1 if share > 0.5 else -1
    return side * math.hypot(max(0.0, side * drawn_quantile(moved, share)), noise)


def varied(simulator: RateSimulator, base: RateRoot, values: Mapping[str, float]) -> tuple[float, Limit, int]:
    """ln QPS under other constants, the limit that binds, and the side of an open end."""
    changed = solve(
        simulator.varied(replaced(simulator.experiment, values)), base.rate_qps, base.slope, ROUGH
    )
    return math.log(changed.root.rate_qps), changed.point.binding, changed.root.side


NUDGE = math.log(1.1)
"""Elasticities span 10 % less to 10 % more of a constant: well above the noise of a rough run."""


def sensitivities(
    prediction: PredictedCapacity, parallel_map: ParallelMap = map
) -> tuple[SensitivityRow, ...]:
    """Every constant's sensitivity, the largest share of the variance first.

    `share` is a constant's part of the variance of ln QPS when all are drawn together, correlated as their
    fit says: the shares add up to 1; one is below 0 if constants that move with it undo more than it does.
    """
    uncertain = {path: it for path, it in constants(prediction.simulator.experiment).items() if it.value > 0}
    wanted = [(path, value) for path, it in uncertain.items() for value in _ends(it)]
    answers = parallel_map(
        partial(varied, prediction.simulator, prediction.quick.root),
        [{path: value} for path, value in wanted],
    )
    ln_qps = {key: ln for key, (ln, _, _) in zip(wanted, answers, strict=True)}
    rows = _shared(prediction, [_sensitivity(path, it, ln_qps, prediction) for path, it in uncertain.items()])
    return tuple(sorted(rows, key=lambda row: (row.share, row.ln_sd, abs(row.elasticity)), reverse=True))


def _ends(constant: Constant) -> Sequence[float]:
    """The values to simulate: nudged to both sides, and the ends of the interval."""
    nudged = [constant.value * math.exp(-NUDGE), constant.value * math.exp(NUDGE)]
    if constant.low is None or constant.high is None:
        return nudged
    return [*nudged, constant.low, constant.high]


def _sensitivity(
    path: str, constant: Constant, ln_qps: Mapping[tuple[str, float], float], prediction: PredictedCapacity
) -> SensitivityRow:
    less, more, *ends = (ln_qps[path, value] for value in _ends(constant))
    elasticity = (more - less) / 2 / NUDGE
    # The rough run's own error drops out: the answer is moved by what the rough run is.
    shift = math.log(prediction.answer.root.rate_qps / prediction.quick.root.rate_qps)
    low_qps, high_qps = [math.exp(ln + shift) for ln in ends] or (None, None)
    return SensitivityRow(
        path=path,
        constant=constant,
        elasticity=elasticity,
        at_low_qps=low_qps,
        at_high_qps=high_qps,
        share=0.0,
        ln_sd=abs(math.log(high_qps / low_qps)) / 2 / Z95 if low_qps and high_qps else 0.0,
    )


def _shared(prediction: PredictedCapacity, rows: Sequence[SensitivityRow]) -> list[SensitivityRow]:
    """The rows with their shares: covariance of an effect with the sum of all, over the sum's variance."""
    sets = drawn(prediction.simulator.experiment, MANY_DRAWS)
    if not sets:
        return list(rows)
    ln_qps = math.log(prediction.answer.root.rate_qps)
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


def _moved(row: SensitivityRow, ln_qps: float, values: Sequence[float]) -> np.ndarray:
    ln = np.log(np.array(values) / row.constant.value)
    ends = (row.constant.low, row.at_low_qps), (row.constant.high, row.at_high_qps)
    below, above = (
        (math.log(qps) - ln_qps) / math.log(end / row.constant.value)
        if end and qps and end != row.constant.value
        else 0.0
        for end, qps in ends
    )
    return np.where(ln < 0, below, above) * ln
