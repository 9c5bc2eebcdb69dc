"""Certified rates as text: a promise is never rounded up."""

import math

UNKNOWN = "unknown"
ALMOST = 1e-6
"""Share of the last digit that a rate may lack of the next one: binary fractions are off by far less."""


def rounded_down(qps: float, decimals: int = 2) -> float:
    """The rate with so many decimals, never above what it was.

    >>> [rounded_down(qps) for qps in (2.65549, 2.6599999, 2.0000000001, 1.9999999999, 0.29)]
    [2.65, 2.65, 2.0, 2.0, 0.29]
    """
    scale = 10.0**decimals
    return math.floor(qps * scale + ALMOST) / scale


def certified_text(qps: float | None) -> str:
    """A certified rate in QPS to two decimals, rounded down; a word where it is unknown.

    >>> certified_text(2.65549), certified_text(4.2), certified_text(None)
    ('2.65', '4.20', 'unknown')
    """
    return UNKNOWN if qps is None else f"{rounded_down(qps):.2f}"
