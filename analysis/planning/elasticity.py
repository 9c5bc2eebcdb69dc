"""Elasticities of the capacity by lengths and hit rate, from a designed matrix of runs or predictions.

ln c is fitted by least squares in u = ln(uncached prompt), o = ln(answer) and h = hit rate, relative to the
first run, and in their products where the design shows them: without products a grid of hit rates 0 to 0.95
is fitted within 17 %, with them within 3 % (the engine model). The first three coefficients are therefore
elasticities at the first run. Uncached tokens have to be computed; at the same uncached length a higher hit
rate means more cache to read.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.planning.efficiency import unlike
from analysis.planning.evidence import Evidence, IntervalEstimate
from analysis.planning.request_means import MeanLengths
from analysis.planning.sources import Source, evidence_of, expanded
from analysis.results.runs import RunError
from analysis.stats.pooling import student_t

Floats = NDArray[np.float64]

FARTHEST = 1.5
"""Factor beyond the measured box from which on lengths are refused."""
SAME = 1e-3
"""Spread of a column below which it counts as not varied."""
LEAST_RUNS = 3
LEAST_FREEDOM = 3
"""Degrees of freedom that must remain before a product is fitted (our choice)."""
FACTORS = ("uncached prompt tokens", "answer tokens", "hit rate")
PRODUCTS = ((0, 2), (0, 1), (1, 2))
Box = Mapping[str, tuple[float, float]]
"""Smallest and largest measured value of each input."""
INPUTS = {"input_tokens": "tokens", "output_tokens": "tokens", "prefix_hit": "share"}


@dataclass(frozen=True, slots=True)
class Term:
    """One effect at the centre: d ln capacity by d ln of a length, or by d hit rate."""

    name: str
    elasticity: IntervalEstimate


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a tornado plot: capacity over that at the centre with one input at either end of the box."""

    name: str
    unit: str
    at_low: float
    at_high: float
    ratio_at_low: IntervalEstimate
    ratio_at_high: IntervalEstimate


@dataclass(frozen=True, slots=True)
class Moved:
    """Capacity at other lengths over that at the centre; `extrapolated` names the inputs outside the box.

    The interval is that of one more capacity, so that it includes the misfit.
    """

    ratio: IntervalEstimate
    extrapolated: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LengthFit:
    """Coefficients of the columns in `kept` (three factors, then their products).

    `freedom` counts points beyond the parameters; with 0 the fit goes through all points, and no interval is
    known. `variance` is that of ln capacity around the fit.
    """

    kept: tuple[int, ...]
    coefficients: tuple[float, ...]
    inverse: tuple[tuple[float, ...], ...]
    variance: float
    freedom: int

    def step(self, columns: Floats, *, one_more: bool) -> IntervalEstimate:
        """ln ratio over the centre, with the interval of the fit or of `one_more` point around it."""
        x = columns[list(self.kept)]
        value = float(x @ np.array(self.coefficients))
        if not self.freedom:
            return IntervalEstimate(value, None, None)
        unsure = float(x @ np.array(self.inverse) @ x) + one_more
        half = student_t(0.975, self.freedom) * math.sqrt(max(0.0, self.variance * unsure))
        return IntervalEstimate(value, value - half, value + half)


@dataclass(frozen=True, slots=True)
class LengthSensitivity:
    """The fit over `runs` capacities around `centre`, the lengths of the first of them."""

    terms: tuple[Term, ...]
    bars: tuple[Bar, ...]
    box: Box
    centre: MeanLengths
    runs: int
    fit: LengthFit

    def moved(self, to: MeanLengths) -> Moved:
        """The ratio at `to` over that at the centre.

        Raises RunError for an input that was not varied, or lies beyond 1.5 times the measured box.
        """
        outside = tuple(name for name in INPUTS if _outside(self.box, name, getattr(to, name)))
        columns = _columns([to], self.centre)[0]
        fixed = [name for i, name in enumerate(FACTORS) if i not in self.fit.kept and abs(columns[i]) > SAME]
        if fixed:
            raise RunError(
                f"these runs do not vary {' and '.join(fixed)}; give runs that do, or leave it as it was"
            )
        return Moved(_exp(self.fit.step(columns, one_more=True)), outside)


def sensitivity(sources: Sequence[Source]) -> LengthSensitivity:
    """Elasticities from runs, predictions or a grid of them, all of one service; the first is the centre.

    Raises RunError for too few, for different services, or for inputs that were only varied together.
    """
    found = [evidence_of(source) for source in expanded(sources)]
    for other in found[1:]:
        difference = unlike(found[0], other)
        if difference not in ("", "lengths") or other.nodes != found[0].nodes:
            what = difference if difference not in ("", "lengths") else "node count"
            raise RunError(
                f"{other.name} differs from {found[0].name} in {what}; sensitivity is of lengths only"
            )
    lengths = [_lengths(one) for one in found]
    centre = lengths[0]
    fit = _fit(_columns(lengths, centre), np.log([_estimate(one) for one in found]))
    unit = np.eye(len(FACTORS) + len(PRODUCTS))
    terms = [Term(FACTORS[i], fit.step(unit[i], one_more=False)) for i in fit.kept if i < len(FACTORS)]
    measured = {name: [getattr(one, name) for one in lengths] for name in INPUTS}
    box = {name: (min(values), max(values)) for name, values in measured.items()}
    return LengthSensitivity(tuple(terms), _bars(box, centre, fit), box, centre, len(found), fit)


def _lengths(one: Evidence) -> MeanLengths:
    if one.lengths is None:
        raise RunError(f"{one.name}: its lengths are unknown; sensitivity needs them")
    return one.lengths


def _estimate(one: Evidence) -> float:
    if one.qps.estimate is None:
        raise RunError(f"{one.name}: only a bound of its capacity is known; sensitivity needs an estimate")
    return one.qps.estimate


def _columns(lengths: Sequence[MeanLengths], centre: MeanLengths) -> Floats:
    """u, o and h relative to the centre, and their products."""
    factors = np.array(
        [
            [
                math.log(one.uncached_tokens / centre.uncached_tokens),
                math.log(one.output_tokens / centre.output_tokens),
                one.prefix_hit - centre.prefix_hit,
            ]
            for one in lengths
        ]
    )
    return np.column_stack([factors, *(factors[:, a] * factors[:, b] for a, b in PRODUCTS)])


def _fit(columns: Floats, y: Floats) -> LengthFit:
    """Least squares; a product is fitted where the design shows it and enough runs remain."""
    kept = [i for i in range(len(FACTORS)) if np.ptp(columns[:, i]) > SAME]
    if len(y) < LEAST_RUNS or not kept:
        raise RunError(
            f"sensitivity needs at least {LEAST_RUNS} capacities at different lengths; it has {len(y)}"
        )
    if not _independent(columns, kept):
        names = ", ".join(FACTORS[i] for i in kept)
        raise RunError(f"{names} were varied only together, or by too few runs; vary each of them alone")
    for product in range(len(FACTORS), columns.shape[1]):
        if _independent(columns, [*kept, product]) and len(y) - len(kept) - 2 >= LEAST_FREEDOM:
            kept.append(product)
    design = np.column_stack([np.ones(len(y)), columns[:, kept]])
    inverse = np.linalg.inv(design.T @ design)
    fitted = inverse @ design.T @ y
    freedom = len(y) - design.shape[1]
    variance = float(np.sum((y - design @ fitted) ** 2)) / freedom if freedom else 0.0
    rows = tuple(tuple(map(float, row)) for row in inverse[1:, 1:])
    return LengthFit(tuple(kept), tuple(map(float, fitted[1:])), rows, variance, freedom)


def _independent(columns: Floats, kept: Sequence[int]) -> bool:
    design = np.column_stack([np.ones(len(columns)), columns[:, list(kept)]])
    return bool(np.linalg.matrix_rank(design, tol=1e-6) == design.shape[1])


def _bars(box: Box, centre: MeanLengths, fit: LengthFit) -> tuple[Bar, ...]:
    """Each input at both ends of the box, the others at the centre; the widest first."""
    bars = []
    for name, unit in INPUTS.items():
        ends: tuple[Any, Any] = box[name]
        low, high = ends
        if high - low > SAME:
            at = _columns([replace(centre, **{name: end}) for end in ends], centre)
            bars.append(Bar(name, unit, low, high, *(_exp(fit.step(one, one_more=False)) for one in at)))
    return tuple(sorted(bars, key=lambda b: -abs(math.log(b.ratio_at_high.value / b.ratio_at_low.value))))


def _exp(ln: IntervalEstimate) -> IntervalEstimate:
    low, high = (None if end is None else math.exp(end) for end in (ln.low, ln.high))
    return IntervalEstimate(math.exp(ln.value), low, high)


def _outside(box: Box, name: str, value: float) -> bool:
    """True outside the box. Raises RunError for a value too far outside.

    A hit rate is judged by the rest of the prompt: 99 % instead of 95 % leaves a fifth to compute.
    """
    low, high = box[name]
    key, asked = f"demand.{name}", value
    if name == "prefix_hit":
        low, high, value = 1 - high, 1 - low, 1 - value
    if not low / FARTHEST <= value <= high * FARTHEST:
        ends = box[name]
        raise RunError(
            f"{key}={asked:g} is beyond {FARTHEST:g} times what was measured ({ends[0]:g} to {ends[1]:g}); "
            "give runs nearer to it"
        )
    return not low * (1 - SAME) <= value <= high * (1 + SAME)
