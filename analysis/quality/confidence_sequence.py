"""Confidence sequences for the mean of bounded values by betting: an end that holds at every moment.

Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86, 2024 (arXiv
2010.09686), Theorem 3, each side by itself. Values may depend on each other as long as each has the mean,
given all before it.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Which = Literal["low", "high"]
Span = tuple[float, float]
"""The least and the most that a value can be."""

BOLDEST = 0.85
"""Largest part of the capital that a bet may lose at once (our choice). A bolder one shows sooner that what
was never seen is rarer than 1 % (with 0.9 after 407 values instead of 432), and later what was seen once
(662 instead of 653)."""
STEADY_SHARE = 0.5
"""Part of the capital that always bets the boldest, which is best where values scatter much less than the
margin; the rest bets by the scatter. Where both bet the same, the division costs nothing."""

FINE, FINE_STEPS = 100, (-200, 400)
"""Steps of the grid of means per margin, and how far they reach around 0."""
COARSE = 1.02
"""Ratio of neighbours further out."""


def grid(margin: float, low: float, high: float) -> Floats:
    """Means from `low` to `high`, dense around 0 and `margin`, which is one of them exactly.

    `low` must be below 0 and `high` above `margin`.
    """
    first, last = FINE_STEPS
    fine = margin * (np.arange(first, last + 1) / FINE)
    most = max(-low, high)
    steps = np.arange(1, 2 + math.ceil(max(0.0, math.log(most * FINE / -first / margin)) / math.log(COARSE)))
    further = margin * COARSE**steps
    means = np.concatenate([fine, further * first / FINE, further * last / FINE])
    return np.unique(means[(means > low) & (means < high)])


def fewest_values(margin: float, span: Span, alpha: float) -> int:
    """Values after which a mean is shown to be below `margin` if all of them are 0."""
    gain = BOLDEST * margin / (span[1] - margin)
    return math.ceil(-math.log(alpha) / math.log1p(gain))


class MeanEnd:
    """The lower or upper end of the mean of values in `span`, wrong with a chance of at most `alpha`, ever.

    For each mean of a grid a capital of 1 is bet against it: that the values are lower (`which="high"`) or
    higher. If the mean is true, or beyond, the capital is a supermartingale, which reaches 1 / alpha with a
    chance of at most alpha (Ville). Every bet has the same stake for all means, or risks the same part of the
    capital: the capital is then monotone in the mean, and the means that are left are an interval. `shape`
    follows many sequences side by side.
    """

    def __init__(
        self,
        which: Which,
        span: Span,
        means: Floats,
        alpha: float,
        shape: tuple[int, ...] = (),
    ) -> None:
        self._which, self._span, self._means = which, span, means
        self._needed = -math.log(alpha)
        self._unit_means = self._in_unit(means)
        self._log_capital = np.zeros((2, *shape, len(means)))
        self._best = np.full((*shape, len(means)), -np.inf)
        self._count, self._sum, self._squares = 0, np.zeros(shape), np.zeros(shape)

    def feed(self, values: ArrayLike) -> None:
        """Take the next value of each sequence. Raises ValueError for one outside the span."""
        low, high = self._span
        given = np.asarray(values, dtype=np.float64)
        if not ((low <= given) & (given <= high)).all():
            raise ValueError(f"a value lies outside {low:g} to {high:g}")
        value = self._in_unit(given)[..., None]
        stake = np.minimum(self._stake()[..., None], BOLDEST / (1 - self._unit_means))
        away = self._unit_means - value
        self._log_capital[0] += np.log1p(BOLDEST * away / (1 - self._unit_means))
        self._log_capital[1] += np.log1p(stake * away)
        np.maximum(self._best, self._capital(), out=self._best)
        self._learn(value[..., 0])

    @property
    def excluded(self) -> Bools:
        """The means of the grid that were refuted at some moment."""
        return self._best >= self._needed

    @property
    def end(self) -> Floats:
        """The end, outward on the grid; the bound of the values while nothing is excluded.

        The mean lies strictly inside it.
        """
        bound = self._span[1] if self._which == "high" else self._span[0]
        nearest = np.where(self.excluded, self._means, bound)
        return np.asarray(nearest.min(axis=-1) if self._which == "high" else nearest.max(axis=-1))

    def _in_unit(self, values: Floats) -> Floats:
        """Values between 0 and 1, turned around for a lower end, which is then an upper one."""
        low, high = self._span
        return (values - low) / (high - low) if self._which == "high" else (high - values) / (high - low)

    def _stake(self) -> Floats:
        """The predictable plug-in bet (their equation 26), from the values before."""
        time = self._count + 1
        variance = (0.25 + self._squares) / time
        return np.asarray(np.sqrt(2 * self._needed / (variance * time * math.log1p(time))))

    def _learn(self, value: Floats) -> None:
        self._count += 1
        self._sum = self._sum + value
        self._squares = self._squares + (value - (0.5 + self._sum) / (self._count + 1)) ** 2

    def _capital(self) -> Floats:
        """ln of the capital of both ways of betting together."""
        steady, scatter = self._log_capital
        return np.asarray(np.logaddexp(math.log(STEADY_SHARE) + steady, math.log(1 - STEADY_SHARE) + scatter))
