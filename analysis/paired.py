"""How much more load one service carries than another, from windows that had the same requests.

Knows latencies request by request, bounds and ratios of rates; knows no folder, no service and no next rate.
Common random numbers: the method, section 2.5. What is compared here is ours: over each bound the share of
A's window minus that of B's, in which the luck of the common arrivals cancels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.capacity import LIMITS
from analysis.kernel import Limit

Floats = NDArray[np.float64]
Tree = dict[str, Any]
Bounds = tuple[float, float]
"""The bounds of p90 TTFT and p90 TPOT in ms."""

BAND = 0.3
"""A share is averaged over bounds within a factor e^+-0.3 of the asked one: the ratio hardly depends on the
bound, and requests that just miss it no longer decide (halves the spread, simulated)."""
SLOPE_CENTRE, SLOPE_SD = math.log(18), 0.3
"""d logit(share) / d ln(rate): 16 to 24 over scenarios S1, S2, S4 of the method (simulated, windows ended
early left out)."""
NOISE, NOISE_PAIRS = 0.03, 4
"""sd of the difference of a pair's shares before it is seen, and how many pairs that belief weighs."""
FAR = 0.05
"""ln distance between a pair's ratio and the answer that doubles its variance: too far for one slope."""
PRIOR_SD = 0.12
"""sd of ln(ratio) around where the search for it began, which is the ratio of two ramps."""
LEAST_REQUESTS, LEAST_PAIRS = 10, 3
MOST_TOLD = 4
"""Keys that differ between A and B and stand on the screen."""
UNLIKE = 0.5
"""A and B are limited by different bounds if their parts over TTFT among all over differ by more."""
_DELTAS = np.linspace(-0.7, 0.7, 1401)
_STEPS = np.linspace(-2.5, 2.5, 11)
_NORMAL_95 = 1.959964


@dataclass(frozen=True, slots=True)
class Latencies:
    """TTFT and TPOT in ms of a window's requests in order of due time; nan is not known (yet), inf failed."""

    ttft: Floats
    tpot: Floats


@dataclass(frozen=True, slots=True)
class Shares:
    """One limit in a pair: of `determined` requests known on both sides, `over` it as (A, B).

    `near` counts the same averaged over bounds within e^+-BAND, so that a request counts in part.
    """

    determined: int
    over: tuple[int, int]
    near: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Pair:
    """A window of A and its replay on B at exp(`log_ratio`) times the rate, as far as both went.

    A pair is not `whole` if one side was ended early: then it says where to look, but not what to report,
    because a window ends early by its own outcome.
    """

    index: int
    log_ratio: float
    whole: bool
    ttft: Shares
    tpot: Shares


@dataclass(frozen=True, slots=True)
class LimitRatio:
    """Ratio of the rates at which one limit is just kept, with its 95 % interval.

    `weight` is the limit's part among the requests over a bound.
    """

    value: float
    low: float
    high: float
    weight: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """Capacity of B over capacity of A, with its 95 % interval, and per limit where that is known.

    `correlation` is that of the two sides' shares over the pairs, None where it is unknown. `unlike`: A and
    B are limited by different bounds, so that common arrivals do not help.
    """

    value: float
    low: float
    high: float
    ttft: LimitRatio | None
    tpot: LimitRatio | None
    pairs: int
    correlation: float | None
    unlike: bool

    @property
    def verdict(self) -> str:
        """What the interval shows."""
        if self.low > 1:
            return "B is better"
        return "B is worse" if self.high < 1 else "no difference shown"


def pair(index: int, log_ratio: float, whole: bool, a: Latencies, b: Latencies, bounds_ms: Bounds) -> Pair:
    """The pair of two windows with the same requests; where one ended early, the requests that both had."""
    count = min(len(a.ttft), len(b.ttft))
    shares = [
        _shares(getattr(a, limit)[:count], getattr(b, limit)[:count], bound)
        for limit, bound in zip(LIMITS, bounds_ms, strict=True)
    ]
    return Pair(index, log_ratio, whole, *shares)


def ratio(pairs: Sequence[Pair], start: float) -> Ratio | None:
    """Ratio of the capacities from `pairs`; ln(ratio) was thought to be near `start`.

    None if not one request was over a bound: the pairs then say nothing.
    """
    parts = [_over(pairs, side) for side in (0, 1)]
    total = sum(map(sum, parts))
    found: dict[Limit, LimitRatio | None] = {}
    for limit, *over in zip(LIMITS, *parts, strict=True):
        figures = _limit(pairs, limit, start) if total and sum(over) else None
        found[limit] = LimitRatio(*figures, sum(over) / total) if figures else None
    known = [one for one in found.values() if one]
    if not known:
        return None
    value, low, high = (math.exp(figure) for figure in _mixed(known))
    main = max(LIMITS, key=lambda limit: getattr(found[limit], "weight", 0.0))
    unlike = all(map(sum, parts)) and abs(parts[0][0] / sum(parts[0]) - parts[1][0] / sum(parts[1])) > UNLIKE
    return Ratio(
        value, low, high, found["ttft"], found["tpot"], len(pairs), _correlation(pairs, main), unlike
    )


def unpaired(a: tuple[float, float, float], b: tuple[float, float, float]) -> tuple[float, float, float]:
    """Ratio b / a of two independent estimates (value, low, high) with its 95 % interval."""
    value = math.log(b[0] / a[0])
    below = math.hypot(math.log(b[0] / b[1]), math.log(a[2] / a[0]))
    above = math.hypot(math.log(b[2] / b[0]), math.log(a[0] / a[1]))
    return math.exp(value), math.exp(value - below), math.exp(value + above)


def tree(found: Ratio) -> Tree:
    """The part of study.json that a comparison adds."""
    return asdict(found) | {"verdict": found.verdict, "interval": "95 % of capacity B / capacity A"}


def headline(found: Tree) -> str:
    """The verdict in a line."""
    return (
        f"B / A = {found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}] (95 %): {found['verdict']}"
    )


def lines(study: Mapping[str, Any]) -> list[str]:
    """What the ratio of a study rests on, for the screen."""
    found = study["ratio"]
    told = [f"{key} {ours} -> {theirs}" for key, (ours, theirs) in study["differs"].items()]
    more = f" and {len(told) - MOST_TOLD} more (study.json)" if len(told) > MOST_TOLD else ""
    known = found["correlation"]
    correlation = "unknown" if known is None else f"{known:.2f}"
    shown = [
        f"  from A to B: {', '.join(told[:MOST_TOLD])}{more}",
        f"  {found['pairs']} pairs of windows: B got A's arrivals and lengths, scaled in time; correlation"
        f" {correlation}",
    ]
    for limit in LIMITS:
        if one := found[limit]:
            shown.append(
                f"  by p90 {limit.upper()} alone {one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}],"
                f" {100 * one['weight']:.0f} % of what was over a bound"
            )
    if found["unlike"]:
        shown.append(
            "  A and B are limited by different bounds: the ratio is that of the two capacities alone"
        )
    return shown


def _shares(a: Floats, b: Floats, bound_ms: float) -> Shares:
    both = ~(np.isnan(a) | np.isnan(b))
    sides = [side[both] for side in (a, b)]
    over = [int(np.sum(side > bound_ms)) for side in sides]
    near = [float(np.sum(_near(side, bound_ms))) for side in sides]
    return Shares(int(both.sum()), (over[0], over[1]), (near[0], near[1]))


def _near(latency_ms: Floats, bound_ms: float) -> Floats:
    """Part of the bounds within e^+-BAND of the asked one, even in ln, that a latency is over."""
    above = np.log(np.maximum(latency_ms, 1e-9) / bound_ms)
    part: Floats = np.clip(0.5 + above / (2 * BAND), 0.0, 1.0)
    return part


def _over(pairs: Sequence[Pair], side: int) -> list[int]:
    """Requests of one side over each limit."""
    return [sum(getattr(one, limit).over[side] for one in pairs) for limit in LIMITS]


def _limit(pairs: Sequence[Pair], limit: Limit, start: float) -> tuple[float, float, float] | None:
    """Median and 95 % interval of the ratio for one limit.

    Per pair D = share of B - share of A ~ gain x (ln ratio tried - delta), gain = slope x v (1 - v) at the
    mean share v. Posterior on a grid of (delta, slope); the variance is integrated out (Student's t).
    """
    used = [(one, getattr(one, limit)) for one in pairs]
    used = [(one, shares) for one, shares in used if shares.determined >= LEAST_REQUESTS]
    if not used:
        return None
    tried = np.array([one.log_ratio for one, _ in used])[:, None, None]
    determined = np.array([shares.determined for _, shares in used], dtype=np.float64)
    near = np.array([shares.near for _, shares in used])
    share = float(near.sum()) / (2 * float(determined.sum()))
    if not 0 < share < 1:
        return None
    weight = (determined / determined.mean())[:, None, None]
    difference = ((near[:, 1] - near[:, 0]) / determined)[:, None, None]
    gain = (np.exp(SLOPE_CENTRE + SLOPE_SD * _STEPS) * share * (1 - share))[:, None]
    deltas = start + _DELTAS
    apart = tried - deltas
    spread = 1 + (apart / FAR) ** 2
    squares = np.sum(weight * (difference - gain * apart) ** 2 / spread, axis=0)
    belief = -0.5 * _STEPS[:, None] ** 2 - 0.5 * (_DELTAS / PRIOR_SD) ** 2
    freedom = len(used) + NOISE_PAIRS
    log_mass = belief - 0.5 * np.sum(np.log(spread), axis=0)
    log_mass = log_mass - 0.5 * freedom * np.log(NOISE_PAIRS * NOISE**2 + squares)
    mass = np.exp(log_mass - log_mass.max()).sum(axis=0)
    cdf = np.cumsum(mass) / mass.sum()
    median, low, high = np.interp([0.5, 0.025, 0.975], cdf, deltas)
    return math.exp(median), math.exp(low), math.exp(high)


def _mixed(known: Sequence[LimitRatio]) -> tuple[float, float, float]:
    """ln of the ratio of the capacities and its interval: the limits by weight, and how far they disagree."""
    weights = np.array([one.weight for one in known])
    weights = weights / weights.sum()
    figures = np.log([(one.value, one.low, one.high) for one in known])
    value, low, high = weights @ figures
    between = _NORMAL_95 * math.sqrt(float(weights @ (figures[:, 0] - value) ** 2))
    return (
        float(value),
        float(value - math.hypot(value - low, between)),
        float(value + math.hypot(high - value, between)),
    )


def _correlation(pairs: Sequence[Pair], limit: Limit) -> float | None:
    shares = [getattr(one, limit) for one in pairs]
    sides = np.array([one.near for one in shares if one.determined]).T
    if sides.size < 6 or not np.all(sides.std(axis=1) > 0):
        return None
    return float(np.corrcoef(sides)[0, 1])
