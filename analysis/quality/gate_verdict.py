"""The verdict of a gate with its evidence in numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.quality.answers import SIDES, ComparedAnswers, PromptEvidence

Called = Literal["SAME", "DEGRADED", "UNDECIDED"]
WORST = 10
"""Prompts that are named as the worst (our choice)."""


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """Ends of a mean, which hold at every moment, and the margin. The mean lies strictly between them."""

    low: float
    high: float
    margin: float

    @property
    def is_below(self) -> bool:
        """True if the mean is shown to be below the margin."""
        return self.high <= self.margin

    @property
    def is_above(self) -> bool:
        return self.low >= self.margin


@dataclass(frozen=True, slots=True)
class PairFigures:
    """One side beside the base, over the prompts that all sides answered.

    `at_risk` are the positions up to the first other token, `flips` the answers that have one, `mean_nats`
    the mean over prompts of their mean divergence, and `broken` the broken prompts.
    """

    mean_nats: float
    broken: int
    flips: int
    at_risk: int

    @property
    def flips_per_position(self) -> float:
        """Chance of another token at a position at risk; 0 without any."""
        return self.flips / self.at_risk if self.at_risk else 0.0


@dataclass(frozen=True, slots=True)
class PositionFigures:
    """Mean divergence at a position of the answer, from 0, over the prompts still at risk there.

    A mean is None where none is at risk.
    """

    position: int
    again_at_risk: int
    candidate_at_risk: int
    again_nats: float | None
    candidate_nats: float | None


@dataclass(frozen=True, slots=True)
class WorstPrompt:
    """A prompt by its number: divergence beyond the repeat's, and the most at one position (nats)."""

    prompt: int
    excess_nats: float
    most_nats: float


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Prompts whose request failed, per side, among those that count."""

    base: int
    again: int
    candidate: int


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """The verdict, read from its intervals, and what it rests on.

    Each interval is of the candidate less the repeat: `nats` the mean divergence from the base, `broken` the
    share of broken prompts, `unanswered` that of prompts without an answer. Of `prompts` that count, all
    sides answered `compared`; `unused` came after the decision, or behind a number that was missing.
    """

    verdict: Called
    nats: MeanInterval
    broken: MeanInterval
    unanswered: MeanInterval
    prompts: int
    compared: int
    unused: int
    failed: Unanswered
    again: PairFigures
    candidate: PairFigures
    by_position: tuple[PositionFigures, ...]
    worst: tuple[WorstPrompt, ...]

    @property
    def excess_nats(self) -> float:
        """Mean divergence of the candidate beyond that of the repeat."""
        return self.candidate.mean_nats - self.again.mean_nats

    @property
    def excess_broken(self) -> float:
        """Share of broken prompts beyond the repeat's; 0 without a compared prompt."""
        return (self.candidate.broken - self.again.broken) / max(1, self.compared)

    @property
    def why(self) -> tuple[str, ...]:
        """The reasons that decide it or keep it open, one line each."""
        nats = f"mean excess divergence {_ends(self.nats)} nats, margin {self.nats.margin:g}"
        broken = f"share of broken prompts beyond the repeat's {_shares(self.broken)}"
        unanswered = f"share of unanswered prompts beyond the repeat's {_shares(self.unanswered)}"
        lines = [(self.nats, nats), (self.broken, broken), (self.unanswered, unanswered)]
        if self.verdict == "SAME":
            return tuple(line for _, line in lines[:2])
        if self.verdict == "DEGRADED":
            return tuple(line for one, line in lines[:2] if one.is_above)
        failed = self.failed
        counted = [
            f"unanswered of {self.prompts}: {failed.base} by the base, {failed.again} by its repeat, "
            f"{failed.candidate} by the candidate"
        ]
        return (*(line for one, line in lines if not one.is_below), *(counted if any_failed(failed) else []))


def any_failed(failed: Unanswered) -> bool:
    return bool(failed.base or failed.again or failed.candidate)


def figures(
    verdict: Called,
    intervals: Sequence[MeanInterval],
    counted: Sequence[PromptEvidence],
    unused: int,
    broken_divergence: float,
) -> GateVerdict:
    """The verdict over the prompts that count; three intervals in the order of its fields."""
    both = [
        (one.prompt, one.again, one.candidate)
        for one in counted
        if one.again is not None and one.candidate is not None
    ]
    again, candidate = [one[1] for one in both], [one[2] for one in both]
    nats, broken, unanswered = intervals
    return GateVerdict(
        verdict=verdict,
        nats=nats,
        broken=broken,
        unanswered=unanswered,
        prompts=len(counted),
        compared=len(both),
        unused=unused,
        failed=Unanswered(*(sum(side in one.unanswered for one in counted) for side in SIDES)),
        again=_pair(again, broken_divergence),
        candidate=_pair(candidate, broken_divergence),
        by_position=_by_position(again, candidate),
        worst=_worst(both),
    )


def _pair(compared: Sequence[ComparedAnswers], broken_divergence: float) -> PairFigures:
    return PairFigures(
        mean_nats=float(np.mean([one.mean_nats for one in compared])) if compared else 0.0,
        broken=sum(one.most_nats > broken_divergence for one in compared),
        flips=sum(one.flipped for one in compared),
        at_risk=sum(one.positions for one in compared),
    )


def _by_position(
    again: Sequence[ComparedAnswers], candidate: Sequence[ComparedAnswers]
) -> tuple[PositionFigures, ...]:
    longest = max((one.positions for one in (*again, *candidate)), default=0)
    return tuple(
        PositionFigures(at, *(len(one) for one in there), *(_mean(one) for one in there))
        for at in range(longest)
        for there in [[[one.nats[at] for one in side if one.positions > at] for side in (again, candidate)]]
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _worst(both: Iterable[tuple[int, ComparedAnswers, ComparedAnswers]]) -> tuple[WorstPrompt, ...]:
    """The prompts with the most at one position, for that is what a reader sees; ties by number."""
    found = [
        WorstPrompt(prompt, candidate.mean_nats - again.mean_nats, candidate.most_nats)
        for prompt, again, candidate in both
    ]
    return tuple(sorted(found, key=lambda one: (-one.most_nats, one.prompt))[:WORST])


def _ends(interval: MeanInterval) -> str:
    return f"[{interval.low:.4f}, {interval.high:.4f}]"


def _shares(interval: MeanInterval) -> str:
    return f"[{interval.low:.2%}, {interval.high:.2%}], margin {interval.margin:.2%}"
