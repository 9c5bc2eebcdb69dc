"""A value with its interval: one type for capacities, latencies, costs and ratios."""

import math
from collections.abc import Callable
from dataclasses import dataclass

NORMAL_95, NORMAL_975 = 1.644854, 1.959964
"""Quantiles of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval. An end that is None is open: nothing bounds the value there.

    A bound alone (`at_least`, `at_most`) is its own closed end. `certified` is the 5 % quantile of a
    capacity: with 95 % probability a node keeps its bounds at this rate; None where it is unknown or does not
    apply.
    """

    value: float
    low: float | None = None
    high: float | None = None
    certified: float | None = None

    @classmethod
    def at_least(cls, bound: float) -> "Estimate":
        """A value of which only a lower bound is known."""
        return cls(bound, low=bound)

    @classmethod
    def at_most(cls, bound: float) -> "Estimate":
        """A value of which only an upper bound is known."""
        return cls(bound, high=bound)

    @classmethod
    def of_ln(cls, value: float, sd: float) -> "Estimate":
        """A value whose logarithm is normal with this sd."""
        return cls(value, value * math.exp(-NORMAL_975 * sd), value * math.exp(NORMAL_975 * sd))

    def __str__(self) -> str:
        return span(self)

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """Both ends of the interval."""
        return self.low, self.high

    @property
    def is_open(self) -> bool:
        """True if an end of the interval is open."""
        return None in self.ends

    @property
    def is_lower_bound(self) -> bool:
        """True if only a lower bound is known."""
        return self.high is None and self.low == self.value

    @property
    def is_upper_bound(self) -> bool:
        """True if only an upper bound is known."""
        return self.low is None and self.high == self.value

    @property
    def is_bound(self) -> bool:
        """True if only a bound on one side is known."""
        return self.is_lower_bound or self.is_upper_bound

    @property
    def ln_sd(self) -> float:
        """Sd of the logarithm, taken as normal. Raises ValueError for an open end."""
        if self.low is None or self.high is None:
            raise ValueError("an estimate with an open end has no sd")
        return math.log(self.high / self.low) / (2 * NORMAL_975)

    def times(self, factor: float) -> "Estimate":
        """The value and its interval times a factor above 0."""
        return self._each(lambda figure: figure * factor)

    def per(self, parts: float) -> "Estimate":
        """The value and its interval per one of so many parts."""
        return self._each(lambda figure: figure / parts)

    def _each(self, change: Callable[[float], float]) -> "Estimate":
        ends = (None if end is None else change(end) for end in (self.low, self.high, self.certified))
        return Estimate(change(self.value), *ends)


UNKNOWN, OPEN = "unknown", "open"
"""Words of a number that nobody knows, and of an end of an interval that nothing bounds."""
DIGITS, WIDTH_DIGITS, MOST_DIGITS = 3, 2, 5
"""Fewest significant digits of an estimate and of the width of its interval, and most of an estimate (our
choice)."""
ALMOST = 1e-6
"""Share of the last digit that a rate may lack of the next one: binary fractions are off by far less."""


def number(value: float | None, digits: int = 4) -> str:
    """A number to so many significant digits, whole numbers whole; words where it is unknown or infinite.

    >>> number(0.01234567), number(5600.0), number(2.5), number(None), number(math.inf)
    ('0.01235', '5600', '2.5', 'unknown', 'infinite')
    """
    if value is None or math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def fixed(value: float | None, decimals: int = 0) -> str:
    """A number with so many decimals; a word where it is unknown.

    >>> fixed(12.34, 1), fixed(None), fixed(math.inf)
    ('12.3', 'unknown', 'inf')
    """
    return UNKNOWN if value is None or math.isnan(value) else f"{value:.{decimals}f}"


def span(estimate: Estimate | None) -> str:
    """A value with its interval, in as many digits as the width of the interval is worth.

    >>> span(Estimate(3.3112, 2.4041, 4.4512)), span(Estimate(0.01482, 0.01311, None)), span(Estimate(0.5))
    ('3.31 [2.40, 4.45]', '0.0148 [0.0131, open]', '0.500')
    >>> span(Estimate.at_least(2.4159)), span(Estimate.at_most(2.4111)), span(None)
    ('at least 2.41', 'at most 2.42', 'unknown')
    """
    if estimate is None:
        return UNKNOWN
    if estimate.is_lower_bound:
        return f"at least {_decimal(rounded_down(estimate.value, _decimals(estimate)), estimate)}"
    if estimate.is_upper_bound:
        return f"at most {_decimal(-rounded_down(-estimate.value, _decimals(estimate)), estimate)}"
    return middle(estimate) + ("" if estimate.ends == (None, None) else f" {interval(estimate)}")


def middle(estimate: Estimate) -> str:
    """The value alone, in the digits of its interval."""
    return _decimal(estimate.value, estimate)


def interval(estimate: Estimate) -> str:
    """Both ends in brackets."""
    return f"[{', '.join(OPEN if end is None else _decimal(end, estimate) for end in estimate.ends)}]"


def certified(estimate: Estimate) -> str:
    """The certified rate in the digits of its interval: a guarantee is rounded down, never up.

    >>> certified(Estimate(3.31, 2.40, 4.45, 2.519)), certified(Estimate(3.31))
    ('2.51', 'unknown')
    """
    if estimate.certified is None:
        return UNKNOWN
    return _decimal(rounded_down(estimate.certified, _decimals(estimate)), estimate)


def rounded_down(value: float, decimals: int) -> float:
    """The value with so many decimals, never above what it was.

    >>> [rounded_down(qps, 2) for qps in (2.65549, 2.6599999, 2.0000000001, 1.9999999999, 0.29)]
    [2.65, 2.65, 2.0, 2.0, 0.29]
    """
    if not math.isfinite(value):
        return value
    scale = 10.0**decimals
    return math.floor(value * scale + ALMOST) / scale


def _decimal(value: float, like: Estimate) -> str:
    return f"{value:.{_decimals(like)}f}" if math.isfinite(value) else number(value)


def _decimals(estimate: Estimate) -> int:
    """Decimals that show the value to `DIGITS` digits and the width of its interval to `WIDTH_DIGITS`.

    A value that is small beside its interval has the digits of a tenth of the interval.
    """
    low, high = estimate.ends
    width = 0.0 if low is None or high is None or not math.isfinite(high - low) else high - low
    size = max(abs(estimate.value), width / 10) if math.isfinite(estimate.value) else width
    if not size:
        return DIGITS - 1
    first = -math.floor(math.log10(size))
    wanted = first + DIGITS - 1
    if width:
        wanted = max(wanted, WIDTH_DIGITS - 1 - math.floor(math.log10(width)))
    return max(0, min(wanted, first + MOST_DIGITS - 1))
