"""Quantiles at a given load under drawn constants, and the interval from their uncertainty and noise.

The load and its simulation are handed in.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from analysis.results.figures import Quantile
from analysis.results.predictions import RateDraws
from analysis.stats.estimate import Estimate
from conf.constants import replaced
from conf.specs.bounds import Limit
from conf.specs.experiment import Experiment
from loadgen.predict.draws import drawn, uncertain
from loadgen.predict.uncertainty import DRAWS, ParallelMap, drawn_quantile

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
