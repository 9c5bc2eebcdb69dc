"""A window of service A paired with its replay on B: how many of the common requests were over each limit.

Knows latencies request by request and the bounds; knows no ratio of capacities and no service.
"""

from dataclasses import dataclass

import numpy as np

from analysis.stats.quantiles import Floats
from conf.specs.experiment import Slo

BAND = 0.3
"""A share is averaged over bounds within a factor e^+-0.3 of the asked one: the ratio hardly depends on the
bound, and requests that just miss it no longer decide (halves the spread, simulated)."""


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


def pair(index: int, log_ratio: float, whole: bool, a: Latencies, b: Latencies, slo: Slo) -> Pair:
    """The pair of two windows with the same requests; where one ended early, the requests that both had."""
    count = min(len(a.ttft), len(b.ttft))
    shares = [
        _shares(getattr(a, bound.limit)[:count], getattr(b, bound.limit)[:count], bound.ms)
        for bound in slo.bounds
    ]
    return Pair(index, log_ratio, whole, *shares)


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
