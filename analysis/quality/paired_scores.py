"""Right and wrong answers of two sides to the same questions: McNemar's test, the difference of shares."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from analysis.quality.questions import MOST_QUESTIONS

Z95 = 1.959964
"""97.5 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class PairedScores:
    """Questions by who was right. A question that one side left unanswered counts as wrong there.

    `base_failed` and `candidate_failed` are how many those are. Raises ValueError for counts that no file of
    questions gives.
    """

    both: int
    base_only: int
    candidate_only: int
    neither: int
    base_failed: int = 0
    candidate_failed: int = 0

    def __post_init__(self) -> None:
        counts = (self.both, self.base_only, self.candidate_only, self.neither)
        failed = (self.base_failed, self.candidate_failed)
        if min(*counts, *failed) < 0 or self.questions > MOST_QUESTIONS or max(failed) > self.questions:
            raise ValueError(f"{counts} are no counts of at most {MOST_QUESTIONS} questions")

    @classmethod
    def of(
        cls, pairs: Iterable[tuple[bool, bool]], base_failed: int = 0, candidate_failed: int = 0
    ) -> "PairedScores":
        """The counts of (base right, candidate right)."""
        found = list(pairs)
        return cls(
            both=found.count((True, True)),
            base_only=found.count((True, False)),
            candidate_only=found.count((False, True)),
            neither=found.count((False, False)),
            base_failed=base_failed,
            candidate_failed=candidate_failed,
        )

    @property
    def questions(self) -> int:
        return self.both + self.base_only + self.candidate_only + self.neither

    @property
    def base_share(self) -> float | None:
        """Share that the base has right; None without a question."""
        return (self.both + self.base_only) / self.questions if self.questions else None

    @property
    def candidate_share(self) -> float | None:
        return (self.both + self.candidate_only) / self.questions if self.questions else None

    @property
    def p_value(self) -> float:
        """McNemar's exact test, two-sided: chance of so uneven a split of those that one alone has right."""
        split = self.base_only + self.candidate_only
        fewer = min(self.base_only, self.candidate_only)
        ways = tail = 1
        for count in range(fewer):
            ways = ways * (split - count) // (count + 1)
            tail += ways
        return min(1.0, float(Fraction(2 * tail, 2**split)))

    @property
    def difference(self) -> float | None:
        """Share of the candidate less that of the base; None without a question."""
        return (self.candidate_only - self.base_only) / self.questions if self.questions else None

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the difference: Newcombe, Statistics in Medicine 17, 1998, 2635-2650, method 10.

        Wilson's intervals of both shares, put together with the correlation of the answers. Without a
        question it is all there can be.
        """
        total = self.questions
        if not total:
            return -1.0, 1.0
        one, two = self.both + self.candidate_only, self.both + self.base_only
        (low, share, high), (base_low, base, base_high) = _wilson(one, total), _wilson(two, total)
        phi = self._correlation(one, two)
        below, above = (share - low, base_high - base), (high - share, base - base_low)
        middle = share - base
        return max(-1.0, middle - _root(*below, phi)), min(1.0, middle + _root(*above, phi))

    def _correlation(self, one: int, two: int) -> float:
        """Newcombe's correlation, corrected for continuity; 0 where a side is all right or wrong."""
        total = self.questions
        spread = one * (total - one) * two * (total - two)
        if not spread:
            return 0.0
        apart = self.both * self.neither - self.base_only * self.candidate_only
        return (max(apart - total / 2, 0.0) if apart > 0 else apart) / math.sqrt(spread)


def _wilson(right: int, total: int) -> tuple[float, float, float]:
    """Lower end, share, upper end."""
    share, squared = right / total, Z95**2
    middle = (right + squared / 2) / (total + squared)
    half = Z95 * math.sqrt(total * share * (1 - share) + squared / 4) / (total + squared)
    return max(0.0, middle - half), share, min(1.0, middle + half)


def _root(one: float, two: float, phi: float) -> float:
    return math.sqrt(max(0.0, one**2 - 2 * phi * one * two + two**2))
