"""The root of a noisy rising function of the rate."""

import math
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

STEEPEST_STEP = math.log(2.0)
"""Longest step in ln rate while one end is unknown: beyond twice the capacity an engine only queues."""
LEAST_STEP = 0.02
CLOSEST = 0.1
"""A new rate stays this share of the bracket away from both ends."""
BEYOND = 1.2
"""Steps are this much longer than needed while one end is unknown, to bracket the root."""
LONGEST = 60

_Point = tuple[float, float]
"""ln rate, and the excess there."""


@dataclass(frozen=True, slots=True)
class RateRoot:
    """The root's rate and the slope there, by ln rate.

    `side` is +1 or -1 if the root lies beyond an end of the search; `rate_qps` is then that end.
    """

    rate_qps: float
    slope: float
    side: int = 0


Excess = Callable[[float], float]


def find_root(
    excess: Excess, start_qps: float, ends_qps: tuple[float, float], slope: float, tolerance: float
) -> RateRoot:
    """The rate at which `excess` (at most 0 while the bounds are kept) turns positive, to `tolerance` in ln
    rate.

    `slope` is a first guess of its derivative by ln rate. Once both signs are known it is a secant search
    within the bracket; the function may be flat far from the root, and noisy by less than the tolerance.
    """
    lowest, highest = (math.log(end) for end in ends_qps)
    at = min(max(math.log(start_qps), lowest), highest)
    points: list[_Point] = []
    widths: list[float] = []
    for _ in range(LONGEST):
        value = excess(math.exp(at))
        insort(points, (at, value))
        slope = _flattest(points, at, slope)
        if abs(value) <= tolerance * slope:
            return RateRoot(math.exp(at - value / slope), slope)
        below = max((point for point in points if point[1] <= 0), default=None)
        above = min((point for point in points if point[1] > 0), default=None)
        if below and above:
            widths.append(above[0] - below[0])
            if widths[-1] <= tolerance:
                return RateRoot(math.exp(_meet(below, above)), _slope(below, above))
            slow = len(widths) > 2 and widths[-1] > widths[-3] / 2
            at = (below[0] + above[0]) / 2 if slow else _within(below, above, at - value / slope)
        elif at in (lowest, highest) and (at == lowest) == (value > 0):
            return RateRoot(math.exp(at), slope, side=-1 if value > 0 else 1)
        else:
            step = min(max(BEYOND * abs(value) / slope, LEAST_STEP), STEEPEST_STEP)
            at = min(max(at - math.copysign(step, value), lowest), highest)
    return RateRoot(math.exp(at), slope)


def _flattest(points: list[_Point], at: float, guess: float) -> float:
    """The smaller slope to a neighbour of the point `at`: the root is no farther than it says."""
    place = next(i for i, point in enumerate(points) if point[0] == at)
    near = [_slope(*points[i : i + 2]) for i in (place - 1, place) if 0 <= i < len(points) - 1]
    return max(min(near), guess / 4) if near else guess


def _within(below: _Point, above: _Point, at: float) -> float:
    """`at` if it lies inside the bracket, else the root of the line through its ends; never close to an
    end.
    """
    if not below[0] < at < above[0]:
        at = _meet(below, above)
    margin = CLOSEST * (above[0] - below[0])
    return min(max(at, below[0] + margin), above[0] - margin)


def _slope(left: _Point, right: _Point) -> float:
    return max((right[1] - left[1]) / (right[0] - left[0]), 1e-3)


def _meet(below: _Point, above: _Point) -> float:
    return below[0] - below[1] * (above[0] - below[0]) / (above[1] - below[1])
