"""Intervals of the engine model's answers from the uncertainty of its constants, and each one's share."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from analysis.results.figures import Quantile
from analysis.results.predictions import CapacityDraws, RateDraws, SensitivityRow
from analysis.stats.estimate import Estimate
from conf.constants import constants, replaced
from conf.specs.bounds import Limit
from conf.specs.experiment import Constant
from loadgen.predict.capacity import PredictedCapacity, RateRoot, solve
from loadgen.predict.draws import NORMAL, drawn, uncertain
from loadgen.predict.operating_point import RateSimulator

ParallelMap = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""`map`, or that of a pool of processes."""

DRAWS = 48
MANY_DRAWS, DRAWS_PER_CONSTANT = 2000, 2
"""Draws of the fitted response, and the draws per constant that it takes to fit it."""
ROUGH = 0.01
"""Tolerance of ln rate; the interval of the default model is some 50 times as wide."""
Z95 = NORMAL.inv_cdf(0.975)
ENDS = (0.025, 0.975)
NUDGE = math.log(1.1)
"""Elasticities span 10 % less to 10 % more of a constant: well above the noise of a rough run."""


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """A capacity under drawn constants: the draws, the limit that binds in each, and the fitted response.

    Draws beyond an end of the search stand as that end. The interval comes from `smoothed`.
    """

    draws: CapacityDraws
    bindings: tuple[Limit, ...] = ()
    smoothed: tuple[float, ...] = ()

    def ends(self, share: float, noise: float) -> float | None:
        """ln distance from the estimate to the quantile `share`, Monte Carlo noise (95 %) included.

        None if that quantile lies beyond an end of the search.
        """
        beyond = self.draws.open_draws_above if share > 0.5 else self.draws.open_draws_below
        if beyond and beyond >= min(share, 1 - share) * self.draws.draws:
            return None
        return interval_end(self.smoothed, share, noise / Z95 * NORMAL.inv_cdf(max(share, 1 - share)))


def uncertainty(
    prediction: PredictedCapacity, draws: int = DRAWS, parallel_map: ParallelMap = map
) -> Uncertainty:
    """The prediction again under `draws` sets of constants, on the same requests."""
    simulator, root = prediction.simulator, prediction.quick.root
    sets = drawn(simulator.experiment, draws)
    answers = list(parallel_map(partial(_varied, simulator, root), sets))
    ln_ratios = tuple(ln_qps - math.log(root.rate_qps) for ln_qps, _, _ in answers)
    below, above = (sum(side == end for _, _, side in answers) for end in (-1, 1))
    many = [] if below or above or not sets else drawn(simulator.experiment, MANY_DRAWS)
    capacity_draws = CapacityDraws(
        draws=len(sets),
        open_draws_below=below,
        open_draws_above=above,
        constants_sampled=tuple(sets[0]) if sets else (),
        ln_ratios=ln_ratios,
    )
    bindings = tuple(binding for _, binding, _ in answers)
    return Uncertainty(capacity_draws, bindings, smoothed(sets, ln_ratios, many))


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


def _varied(
    simulator: RateSimulator, base: RateRoot, values: Mapping[str, float]
) -> tuple[float, Limit, int]:
    """ln QPS under other constants, the limit that binds, and the side of an open end."""
    experiment = replaced(simulator.experiment, values)
    changed = solve(simulator.varied(experiment), base.rate_qps, base.slope, ROUGH)
    return math.log(changed.root.rate_qps), changed.point.binding, changed.root.side


# Which constant matters most.


def sensitivities(
    prediction: PredictedCapacity, parallel_map: ParallelMap = map
) -> tuple[SensitivityRow, ...]:
    """Every constant's sensitivity, the largest share of the variance first.

    `share` is a constant's part of the variance of ln QPS when all are drawn together, correlated as their
    fit says: the shares add up to 1; one is below 0 if constants that move with it undo more than it does.
    """
    positive = {
        path: constant
        for path, constant in constants(prediction.simulator.experiment).items()
        if constant.value > 0
    }
    varied = [(path, value) for path, constant in positive.items() for value in _values(constant)]
    answers = parallel_map(
        partial(_varied, prediction.simulator, prediction.quick.root),
        [{path: value} for path, value in varied],
    )
    ln_qps = {key: ln for key, (ln, _, _) in zip(varied, answers, strict=True)}
    rows = [_sensitivity(path, constant, ln_qps, prediction) for path, constant in positive.items()]
    return tuple(
        sorted(
            _with_shares(prediction, rows),
            key=lambda row: (row.share, row.ln_sd, abs(row.elasticity)),
            reverse=True,
        )
    )


def _values(constant: Constant) -> Sequence[float]:
    """The values to simulate: nudged to both sides, and the ends of the interval."""
    nudged = [constant.value * math.exp(-NUDGE), constant.value * math.exp(NUDGE)]
    if constant.low is None or constant.high is None:
        return nudged
    return [*nudged, constant.low, constant.high]


def _sensitivity(
    path: str, constant: Constant, ln_qps: Mapping[tuple[str, float], float], prediction: PredictedCapacity
) -> SensitivityRow:
    less, more, *ends = (ln_qps[path, value] for value in _values(constant))
    # The rough run's own error drops out: the answer is moved by what the rough run is.
    shift = math.log(prediction.answer.root.rate_qps / prediction.quick.root.rate_qps)
    low_qps, high_qps = [math.exp(ln + shift) for ln in ends] or (None, None)
    return SensitivityRow(
        path=path,
        constant=constant,
        elasticity=(more - less) / 2 / NUDGE,
        at_low_qps=low_qps,
        at_high_qps=high_qps,
        share=0.0,
        ln_sd=abs(math.log(high_qps / low_qps)) / 2 / Z95 if low_qps and high_qps else 0.0,
    )


def _with_shares(prediction: PredictedCapacity, rows: Sequence[SensitivityRow]) -> Sequence[SensitivityRow]:
    """The rows with their shares: covariance of an effect with the sum of all, over the sum's variance."""
    sets = drawn(prediction.simulator.experiment, MANY_DRAWS)
    ln_qps = math.log(prediction.answer.root.rate_qps)
    effects = {
        row.path: _effect(row, ln_qps, [errors[row.path] for errors in sets]) for row in rows if row.ln_sd
    }
    if not sets or not effects:
        return rows
    total = np.sum(list(effects.values()), axis=0)
    total -= total.mean()
    variance = float(total @ total)
    return [
        replace(row, share=float(effects[row.path] @ total) / variance) if row.path in effects else row
        for row in rows
    ]


def _effect(row: SensitivityRow, ln_qps: float, values: Sequence[float]) -> np.ndarray:
    """ln QPS moved by these values of a constant, linear on each side."""
    ln = np.log(np.array(values) / row.constant.value)
    ends = (row.constant.low, row.at_low_qps), (row.constant.high, row.at_high_qps)
    below, above = (
        (math.log(qps) - ln_qps) / math.log(end / row.constant.value)
        if end and qps and end != row.constant.value
        else 0.0
        for end, qps in ends
    )
    return np.where(ln < 0, below, above) * ln


# Quantiles at a rate.


@dataclass(frozen=True, slots=True)
class SimulatedQuantiles:
    """The limited quantiles of one simulation in ms (None if one does not apply), and if every bound is kept.

    It is not `steady` if the queue grew as long as requests came: a quantile then depends on the simulated
    time.
    """

    quantiles_ms: Mapping[Limit, float | None]
    kept: bool
    steady: bool = True


@dataclass(frozen=True, slots=True)
class QuantileDraws:
    """Simulations under the constants' values (`base`) and under each draw of the `sampled` constants."""

    base: SimulatedQuantiles
    draws: tuple[SimulatedQuantiles, ...]
    sampled: tuple[str, ...]

    @property
    def summed(self) -> RateDraws:
        """The share of draws that keep every bound, and the number in which the queue grows."""
        applies = self.draws and any(ms is not None for ms in self.base.quantiles_ms.values())
        return RateDraws(
            draws=len(self.draws),
            constants_sampled=self.sampled,
            kept_probability=sum(draw.kept for draw in self.draws) / len(self.draws) if applies else None,
            overloaded_draws=sum(not draw.steady for draw in self.draws),
        )

    def constants_ms(self, limit: Limit, quantile_ms: float) -> tuple[float, float | None] | None:
        """95 % interval by the draws around `quantile_ms`, that of a longer simulation under the values.

        Its upper end is None (open) if too many draws are overloaded. None without draws or if the latency
        does not apply.
        """
        quantiles = [(draw.quantiles_ms[limit], draw.steady) for draw in self.draws]
        drawn_ms = [(ms, steady) for ms, steady in quantiles if ms is not None]
        base = self.base.quantiles_ms[limit]
        if not drawn_ms or base is None:
            return None
        # Under an overload nothing is known of how the long simulation differs from the short one.
        scale = quantile_ms / base if self.base.steady and quantile_ms and base else 1.0
        settled = [ms * scale for ms, steady in drawn_ms if steady]
        beyond = len(drawn_ms) - len(settled)
        if not settled:
            return min(quantile_ms, *(ms for ms, _ in drawn_ms)), None
        # A time in the queue may be 0, which has no logarithm.
        to, back = (np.log, np.exp) if min(settled) > 0 else (np.asarray, float)
        values = np.sort(to([*settled, *[max(settled)] * beyond]))
        low, high = (float(back(drawn_quantile(values.tolist(), share))) for share in ENDS)
        is_open = beyond >= (1 - ENDS[1]) * len(drawn_ms)
        return min(low, quantile_ms), None if is_open else max(high, quantile_ms)

    def figure(
        self, limit: Limit, quantile_ms: float | None, noise_ms: tuple[float, float] | None, bound_ms: float
    ) -> Quantile:
        """A quantile against its bound, with its 95 % interval; `noise_ms` is Monte Carlo noise alone."""
        if quantile_ms is None:
            return Quantile(ms=None, bound_ms=bound_ms, passed=None)
        interval = self.constants_ms(limit, quantile_ms)
        whole = noise_ms if interval is None else _joined(quantile_ms, interval, noise_ms)
        return Quantile(
            ms=Estimate(quantile_ms, *whole) if whole else Estimate(quantile_ms),
            by_noise=Estimate(quantile_ms, *noise_ms) if noise_ms else None,
            by_constants=Estimate(quantile_ms, *interval) if interval else None,
            bound_ms=bound_ms,
            passed=quantile_ms <= bound_ms,
        )


def quantile_draws(
    simulator: RateSimulator, rate_qps: float, draws: int = DRAWS, parallel_map: ParallelMap = map
) -> QuantileDraws:
    """Quantiles at a rate under the constants' values and `draws` sets of them, on the same requests."""
    sets = drawn(simulator.experiment, draws)
    base, *others = parallel_map(partial(_quantiles, simulator, rate_qps), [{}, *sets])
    return QuantileDraws(base, tuple(others), tuple(uncertain(simulator.experiment)))


def _quantiles(simulator: RateSimulator, rate_qps: float, values: Mapping[str, float]) -> SimulatedQuantiles:
    point = simulator.varied(replaced(simulator.experiment, values)).at(rate_qps)
    quantiles_ms = {limit: point.quantile_ms(limit) for limit in point.slo.limits}
    return SimulatedQuantiles(quantiles_ms, point.worst <= 0, point.steady)


def _joined(
    quantile_ms: float, interval: tuple[float, float | None], noise_ms: tuple[float, float] | None
) -> tuple[float, float | None]:
    """The causes are independent: their distances add up as squares, in ln unless a quantile is 0."""
    low, high = interval
    wide = 0.0 if noise_ms is None else (noise_ms[1] - noise_ms[0]) / 2
    if not quantile_ms or not low:
        up_ms = (
            None if high is None or math.isinf(wide) else quantile_ms + math.hypot(high - quantile_ms, wide)
        )
        return max(0.0, quantile_ms - math.hypot(quantile_ms - low, wide)), up_ms
    noise = wide / quantile_ms
    if math.isinf(noise):
        return 0.0, None
    down = math.hypot(math.log(quantile_ms / low), noise)
    up = None if high is None else quantile_ms * math.exp(math.hypot(math.log(high / quantile_ms), noise))
    return quantile_ms * math.exp(-down), up
