"""Interval of the engine model's answer from the uncertainty of its constants, and each one's share."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from analysis.results.figures import Quantile
from analysis.results.predictions import RateDraws, SensitivityRow
from analysis.stats.estimate import Estimate
from conf.constants import constants, replaced
from conf.specs.bounds import Limit
from conf.specs.experiment import Constant, Experiment
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


ENDS = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class SimulatedQuantiles:
    """The limited quantiles of one simulation in ms (None if one does not apply), and if every bound is kept.

    It is not `steady` if the queue grew as long as requests came: a quantile then depends on the simulated
    time.
    """

    quantiles_ms: Mapping[Limit, float | None]
    kept: bool
    steady: bool = True


Observe = Callable[[Experiment], SimulatedQuantiles]
"""Serves the same requests under an experiment's constants. It is sent to other processes."""


@dataclass(frozen=True, slots=True)
class QuantileDraws:
    """Simulations under the constants' values (`base`) and under each draw of the `sampled` constants."""

    base: SimulatedQuantiles
    draws: tuple[SimulatedQuantiles, ...]
    sampled: tuple[str, ...]

    @property
    def kept_probability(self) -> float | None:
        """Share of draws in which every bound is kept; None without draws or without any latency."""
        known = any(ms is not None for ms in self.base.quantiles_ms.values())
        return sum(seen.kept for seen in self.draws) / len(self.draws) if self.draws and known else None

    @property
    def overloaded(self) -> int:
        """Number of draws in which the queue grew all along."""
        return sum(not seen.steady for seen in self.draws)

    @property
    def summed(self) -> RateDraws:
        """The share of draws that keep every bound, and the number in which the queue grows."""
        return RateDraws(
            draws=len(self.draws),
            constants_sampled=self.sampled,
            kept_probability=self.kept_probability,
            overloaded_draws=self.overloaded,
        )

    def constants_ms(self, limit: Limit, p90_ms: float) -> tuple[float, float | None] | None:
        """95 % interval of a p90 by the draws around `p90_ms`, the p90 of a longer simulation under the
        values.

        Its upper end is None (open) if too many draws are overloaded. None without draws or if the latency
        does not apply.
        """
        known = [(seen.quantiles_ms[limit], seen.steady) for seen in self.draws]
        ms = [(p90, steady) for p90, steady in known if p90 is not None]
        base = self.base.quantiles_ms[limit]
        if not ms or base is None:
            return None
        # Under an overload nothing is known of how the long simulation differs from the short one.
        scale = p90_ms / base if self.base.steady and p90_ms and base else 1.0
        settled = [p90 * scale for p90, steady in ms if steady]
        beyond = len(ms) - len(settled)
        if not settled:
            return min(p90_ms, *(p90 for p90, _ in ms)), None
        # A time in the queue may be 0, which has no logarithm.
        to, back = (np.log, np.exp) if min(settled) > 0 else (np.asarray, float)
        figures = np.sort(to([*settled, *[max(settled)] * beyond]))
        low, high = (float(back(drawn_quantile(figures.tolist(), share))) for share in ENDS)
        is_open = beyond >= (1 - ENDS[1]) * len(ms)
        return min(low, p90_ms), None if is_open else max(high, p90_ms)


def under_draws(
    experiment: Experiment, observe: Observe, draws: int = DRAWS, parallel_map: ParallelMap = map
) -> QuantileDraws:
    """`observe` of the experiment as it is and under `draws` sets of its constants, on the same requests."""
    sets = drawn(experiment, draws)
    seen: Iterable[SimulatedQuantiles] = parallel_map(partial(_seen, observe, experiment), [{}, *sets])
    base, *others = seen
    return QuantileDraws(base, tuple(others), tuple(uncertain(experiment)))


def _seen(observe: Observe, experiment: Experiment, values: Mapping[str, float]) -> SimulatedQuantiles:
    return observe(replaced(experiment, values))


def figures(
    draws: QuantileDraws,
    limit: Limit,
    found_ms: float | None,
    noise_ms: tuple[float, float] | None,
    bound_ms: float,
) -> Quantile:
    """A quantile against its bound, with its 95 % interval and its causes apart.

    `noise_ms` is Monte Carlo noise alone.
    """
    interval = None if found_ms is None else draws.constants_ms(limit, found_ms)
    whole = noise_ms if interval is None or found_ms is None else _joined(found_ms, interval, noise_ms)
    if found_ms is None:
        return Quantile(ms=None, bound_ms=bound_ms, passed=None)
    return Quantile(
        ms=Estimate(found_ms, *whole) if whole else Estimate(found_ms),
        by_noise=Estimate(found_ms, *noise_ms) if noise_ms else None,
        by_constants=Estimate(found_ms, *interval) if interval else None,
        bound_ms=bound_ms,
        passed=found_ms <= bound_ms,
    )


def _joined(
    p90_ms: float, interval: tuple[float, float | None], noise_ms: tuple[float, float] | None
) -> tuple[float, float | None]:
    """The causes are independent: their distances from the p90 add up as squares, in ln unless one is 0."""
    low, high = interval
    if not p90_ms or not low:
        wide = 0.0 if noise_ms is None else (noise_ms[1] - noise_ms[0]) / 2
        up_ms = None if high is None or math.isinf(wide) else p90_ms + math.hypot(high - p90_ms, wide)
        return max(0.0, p90_ms - math.hypot(p90_ms - low, wide)), up_ms
    noise = 0.0 if noise_ms is None else (noise_ms[1] - noise_ms[0]) / 2 / p90_ms
    down = math.hypot(math.log(p90_ms / low), noise)
    up = None if high is None or math.isinf(noise) else math.hypot(math.log(high / p90_ms), noise)
    return (0.0 if math.isinf(down) else p90_ms * math.exp(-down)), None if up is None else p90_ms * math.exp(
        up
    )
