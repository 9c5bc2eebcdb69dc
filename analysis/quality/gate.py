"""The verdict of the quality gate: same, degraded or undecided, from prompt after prompt.

The prompt is the unit, never the token: tokens of one answer depend on each other. Prompts count in the
order of their numbers, whichever answer came first, so that none is left out for being slow, and a file
tells what the run told.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from analysis.quality.answer_file import MOST_NATS, SIDES, ComparedAnswers, PromptEvidence
from analysis.quality.confidence_sequence import Bools, MeanEnd, Span, fewest_values, grid
from conf.specs.search import Quality

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
class GateVerdict:
    """The verdict, read from its intervals, and what it rests on.

    Each interval is of the candidate less the repeat: `nats` the mean divergence from the base, `broken` the
    share of broken prompts, `unanswered` that of prompts without an answer. Of `prompts` that count, all
    sides answered `compared`, and each side `failed` so many; `unused` came after the decision, or behind a
    number that was missing.
    """

    verdict: Called
    nats: MeanInterval
    broken: MeanInterval
    unanswered: MeanInterval
    prompts: int
    compared: int
    unused: int
    failed: Mapping[str, int]
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
        ends = f"[{self.nats.low:.4f}, {self.nats.high:.4f}]"
        nats = f"mean excess divergence {ends} nats, margin {self.nats.margin:g}"
        broken = f"share of broken prompts beyond the repeat's {_shares(self.broken)}"
        unanswered = f"share of unanswered prompts beyond the repeat's {_shares(self.unanswered)}"
        lines = [(self.nats, nats), (self.broken, broken), (self.unanswered, unanswered)]
        if self.verdict == "SAME":
            return tuple(line for _, line in lines[:2])
        if self.verdict == "DEGRADED":
            return tuple(line for side, line in lines[:2] if side.is_above)
        counted = (
            f"unanswered of {self.prompts}: {self.failed['base']} by the base, {self.failed['again']} by its "
            f"repeat, {self.failed['candidate']} by the candidate"
        )
        failed = (counted,) if any(self.failed.values()) else ()
        return (*(line for side, line in lines if not side.is_below), *failed)


def _pair(compared: Sequence[ComparedAnswers], broken_divergence: float) -> PairFigures:
    return PairFigures(
        mean_nats=float(np.mean([comparison.mean_nats for comparison in compared])) if compared else 0.0,
        broken=sum(comparison.most_nats > broken_divergence for comparison in compared),
        flips=sum(comparison.flipped for comparison in compared),
        at_risk=sum(comparison.positions for comparison in compared),
    )


def _by_position(
    again: Sequence[ComparedAnswers], candidate: Sequence[ComparedAnswers]
) -> tuple[PositionFigures, ...]:
    rows = []
    for at in range(max((comparison.positions for comparison in (*again, *candidate)), default=0)):
        there = [[each.nats[at] for each in side if each.positions > at] for side in (again, candidate)]
        means = (float(np.mean(nats)) if nats else None for nats in there)
        rows.append(PositionFigures(at, *map(len, there), *means))
    return tuple(rows)


def _worst(both: Iterable[tuple[int, ComparedAnswers, ComparedAnswers]]) -> tuple[WorstPrompt, ...]:
    """The prompts with the most at one position, for that is what a reader sees; ties by number."""
    changed = [
        WorstPrompt(prompt, candidate.mean_nats - again.mean_nats, candidate.most_nats)
        for prompt, again, candidate in both
    ]
    return tuple(sorted(changed, key=lambda one: (-one.most_nats, one.prompt))[:WORST])


def _shares(interval: MeanInterval) -> str:
    return f"[{interval.low:.2%}, {interval.high:.2%}], margin {interval.margin:.2%}"


NATS_SPAN: Span = (-MOST_NATS, MOST_NATS)
SHARE_SPAN: Span = (-1.0, 1.0)


def fewest_prompts(rule: Quality) -> int:
    """Prompts after which the same can be said at the earliest: all answered, none any different."""
    margins = ((rule.margin_nats, NATS_SPAN), (rule.margin_broken, SHARE_SPAN))
    return max(fewest_values(margin, span, rule.alpha) for margin, span in margins)


class _Ends:
    """Both ends of one interval: the lower at alpha / 2, the upper at alpha, as `GateEnds` needs them."""

    def __init__(self, span: Span, margin: float, alpha: float, shape: tuple[int, ...]) -> None:
        means = np.array([margin]) if shape else grid(margin, *span)
        self.low = MeanEnd("low", span, means, alpha / 2, shape)
        self.high = MeanEnd("high", span, means, alpha, shape)
        self._margin = margin

    def feed(self, values: ArrayLike) -> None:
        self.low.feed(values)
        self.high.feed(values)

    @property
    def below(self) -> Bools:
        """True where the mean is below the margin."""
        return np.asarray(self.high.end <= self._margin)

    @property
    def above(self) -> Bools:
        return np.asarray(self.low.end >= self._margin)

    @property
    def interval(self) -> MeanInterval:
        return MeanInterval(float(self.low.end), float(self.high.end), self._margin)


class GateEnds:
    """The ends that a verdict is read from; `shape` follows many gates side by side, at the margins only.

    The same needs every upper end, so that each may have all of `alpha`: where one margin is exceeded, that
    end alone stands against it. Degraded needs one of two lower ends, so that each has half.
    """

    def __init__(self, rule: Quality, shape: tuple[int, ...] = ()) -> None:
        self.nats = _Ends(NATS_SPAN, rule.margin_nats, rule.alpha, shape)
        self.broken = _Ends(SHARE_SPAN, rule.margin_broken, rule.alpha, shape)
        self.unanswered = _Ends(SHARE_SPAN, rule.margin_broken, rule.alpha, shape)

    def feed(self, nats: ArrayLike, broken: ArrayLike) -> None:
        """Take a prompt that all sides answered: both figures of the candidate less those of the repeat."""
        self.nats.feed(nats)
        self.broken.feed(broken)

    @property
    def same(self) -> Bools:
        return self.nats.below & self.broken.below & self.unanswered.below

    @property
    def degraded(self) -> Bools:
        return self.nats.above | self.broken.above

    @property
    def void(self) -> Bools:
        """True where the candidate leaves so many prompts unanswered that nothing is the same, nor worse."""
        return self.unanswered.above


class Gate:
    """Takes the evidence of prompts in any order and stands open until it is decided.

    The first decision stands: prompts with later numbers do not count, nor does one behind a number that is
    still missing.
    """

    def __init__(self, rule: Quality) -> None:
        self.rule = rule
        self._ends = GateEnds(rule)
        self._waiting: dict[int, PromptEvidence] = {}
        self._counted: list[PromptEvidence] = []
        self._called: Called | None = None

    @property
    def ended(self) -> bool:
        """True once no further prompt can count: decided, void, or at the end of the budget."""
        return self._called is not None

    def add(self, evidence: PromptEvidence) -> None:
        """Take one prompt. Raises ValueError for a number that was there before, or is none."""
        if evidence.prompt < len(self._counted) or evidence.prompt in self._waiting:
            raise ValueError(f"prompt {evidence.prompt} is there twice, or has no number from 0")
        self._waiting[evidence.prompt] = evidence
        while not self.ended and (following := self._waiting.pop(len(self._counted), None)):
            self._count(following)

    @property
    def moment(self) -> "GateMoment":
        """The intervals of the prompts that count so far."""
        return GateMoment(len(self._counted), self._ends.nats.interval, self._ends.broken.interval)

    def verdict(self) -> GateVerdict:
        """The verdict of the prompts that count so far."""
        ends, counted, limit = self._ends, self._counted, self.rule.broken_divergence
        both = [
            (evidence.prompt, evidence.again, evidence.candidate)
            for evidence in counted
            if evidence.again and evidence.candidate
        ]
        again, candidate = [evidence[1] for evidence in both], [evidence[2] for evidence in both]
        return GateVerdict(
            verdict=self._called or "UNDECIDED",
            nats=ends.nats.interval,
            broken=ends.broken.interval,
            unanswered=ends.unanswered.interval,
            prompts=len(counted),
            compared=len(both),
            unused=len(self._waiting),
            failed={side: sum(side in evidence.unanswered for evidence in counted) for side in SIDES},
            again=_pair(again, limit),
            candidate=_pair(candidate, limit),
            by_position=_by_position(again, candidate),
            worst=_worst(both),
        )

    def _count(self, evidence: PromptEvidence) -> None:
        self._counted.append(evidence)
        missing = ["candidate" in evidence.unanswered, "again" in evidence.unanswered]
        self._ends.unanswered.feed(float(missing[0]) - float(missing[1]))
        if evidence.again and evidence.candidate:
            limit = self.rule.broken_divergence
            self._ends.feed(
                evidence.candidate.mean_nats - evidence.again.mean_nats,
                float(evidence.candidate.most_nats > limit) - float(evidence.again.most_nats > limit),
            )
        if self._ends.degraded:
            self._called = "DEGRADED"
        elif self._ends.same:
            self._called = "SAME"
        elif self._ends.void or len(self._counted) >= self.rule.prompts:
            self._called = "UNDECIDED"


@dataclass(frozen=True, slots=True)
class GateMoment:
    """The intervals of a gate after so many prompts."""

    prompts: int
    nats: MeanInterval
    broken: MeanInterval


def moments(evidences: Iterable[PromptEvidence], rule: Quality) -> list[GateMoment]:
    """The intervals after each prompt that counts."""
    gate, moments_seen = Gate(rule), []
    for evidence in sorted(evidences, key=lambda evidence: evidence.prompt):
        if gate.ended:
            break
        gate.add(evidence)
        moments_seen.append(gate.moment)
    return moments_seen


def judge(evidences: Iterable[PromptEvidence], rule: Quality) -> GateVerdict:
    """The verdict of all evidence, in any order. Raises ValueError for a prompt that is there twice."""
    gate = Gate(rule)
    for evidence in evidences:
        gate.add(evidence)
    return gate.verdict()
