"""A window of service A paired with its replay on B: how many of the common requests were over each limit."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis.capacity.window_counts import Parts
from analysis.stats.quantiles import Floats
from conf.specs.bounds import Limit

BAND = 0.3
"""A share is averaged over bounds within a factor e^+-0.3 of the asked one: the ratio hardly depends on the
bound, and requests that just miss it no longer decide (halves the spread, simulated)."""

STRETCHES = 8
"""Parts of a pair whose differences show for how long a service is slower: some 5 s each."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The parts of a window's requests that are over a bound and that are known, in order of due time.

    A request is a whole, or counts by its gaps. Gaps between tokens lie in clusters, of steps with a prompt
    and of those without: a mean over bounds around the asked one hardly moves with the rate, unlike a
    count.
    """

    over: Parts
    known: Parts

    def __len__(self) -> int:
        return len(self.known)

    def __getitem__(self, which: slice) -> "Counted":
        return Counted(self.over[which], self.known[which])


Latencies = Mapping[Limit, Floats | Counted]
"""The latency over its bound of a window's requests in order of due time, by the bound's name; nan is not
known (yet), inf failed. Where gaps between tokens decide it is how many are over."""


@dataclass(frozen=True, slots=True)
class Shares:
    """One limit in a pair: of `determined` requests known on both sides, `over` it as (A, B).

    `near` counts the same averaged over bounds within e^+-BAND, so that a request counts in part; where gaps
    decide (`of_gaps`) it is the same, and a request counts by its part among those of its side. `stretches`
    are the requests in `STRETCHES` equal parts in order of due time: `near` of B minus that of A, and their
    number.
    """

    determined: int
    over: tuple[float, float]
    near: tuple[float, float]
    stretches: tuple[tuple[float, int], ...]
    of_gaps: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """A window of A and its replay on B at exp(`log_ratio`) times the rate, as far as both went.

    A pair is not `whole` if one side was ended early: then it says where to look, but not what to report,
    because a window ends early by its own outcome.
    """

    index: int
    log_ratio: float
    whole: bool
    limits: Mapping[Limit, Shares]


def pair(index: int, log_ratio: float, whole: bool, a: Latencies, b: Latencies) -> Pair:
    """The pair of two windows with the same requests; where one ended early, the requests that both had."""
    count = min(len(known) for side in (a, b) for known in side.values())
    shares = {limit: _shares(known[:count], b[limit][:count]) for limit, known in a.items()}
    return Pair(index, log_ratio, whole, shares)


def _shares(a: Floats | Counted, b: Floats | Counted) -> Shares:
    if isinstance(a, Counted) or isinstance(b, Counted):
        assert isinstance(a, Counted) and isinstance(b, Counted)
        return _counted(a, b)
    both = ~(np.isnan(a) | np.isnan(b))
    over = [int(np.sum(side[both] > 1)) for side in (a, b)]
    parts = [_near(side[both]) for side in (a, b)]
    near = [float(np.sum(part)) for part in parts]
    return Shares(int(both.sum()), (over[0], over[1]), (near[0], near[1]), _stretches(*parts))


def _counted(a: Counted, b: Counted) -> Shares:
    """Shares of what is known of the requests that both sides know, as parts of their number."""
    both = (a.known > 0) & (b.known > 0)
    count = int(both.sum())
    parts = [count * side.over[both] / max(float(side.known[both].sum()), 1e-9) for side in (a, b)]
    over = [float(part.sum()) for part in parts]
    return Shares(count, (over[0], over[1]), (over[0], over[1]), _stretches(*parts), of_gaps=True)


def _stretches(a: Floats, b: Floats) -> tuple[tuple[float, int], ...]:
    """Difference of the requests' parts, and the requests, of each stretch."""
    return tuple(
        (float(part.sum()), len(part)) for part in np.array_split(b - a, min(STRETCHES, max(len(a), 1)))
    )


def _near(over: Floats) -> Floats:
    """Part of the bounds within e^+-BAND of the asked one, even in ln, that a latency is over.

    `over` is the latency over the asked bound.
    """
    above = np.log(np.maximum(over, 1e-9))
    part: Floats = np.clip(0.5 + above / (2 * BAND), 0.0, 1.0)
    return part
