"""Answers of three sides to one prompt, and where two of them differ.

The sides are `base`, the configuration that decides what is right, `again`, the same once more (the repeat),
whose distance from `base` is the noise of batching, and `candidate`.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from analysis.quality.divergence import Alternatives, check, jensen_shannon

Side = Literal["base", "again", "candidate"]
Pair = Literal["again", "candidate"]
"""A side that is compared with `base`."""
SIDES: tuple[Side, ...] = ("base", "again", "candidate")
PAIRS: tuple[Pair, ...] = ("again", "candidate")


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of one answer, and at each position what else was likely there, and how likely.

    Raises ValueError for no token, for positions without alternatives, and for what is no log probability.
    """

    tokens: tuple[int, ...]
    alternatives: tuple[Alternatives, ...]

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.alternatives):
            raise ValueError(f"{len(self.tokens)} tokens with alternatives at {len(self.alternatives)}")
        for at, alternatives in enumerate(self.alternatives):
            if not alternatives:
                raise ValueError(f"no alternatives at position {at}")
            check(alternatives)

    @property
    def listed_mass(self) -> float:
        """Mean probability of all alternatives of a position together; what they lack is not compared."""
        mass = [math.fsum(map(math.exp, likely.values())) for likely in self.alternatives]
        return statistics.fmean(mass)


@dataclass(frozen=True, slots=True)
class ComparedAnswers:
    """Two answers up to and including the first position whose tokens differ; nats per position.

    Until there both sides had read the same text, so that their distributions answer the same question; what
    follows would compare different questions. All three have one length, at least 1.
    """

    base_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    nats: tuple[float, ...]

    @property
    def positions(self) -> int:
        """Positions that could differ: those at risk."""
        return len(self.nats)

    @property
    def flipped(self) -> bool:
        """True if the answers differ."""
        return self.base_tokens[-1] != self.tokens[-1]

    @property
    def mean_nats(self) -> float:
        return statistics.fmean(self.nats)

    @property
    def most_nats(self) -> float:
        return max(self.nats)


@dataclass(frozen=True, slots=True)
class PromptEvidence:
    """The comparisons of one prompt: its number from 0, and each side beside `base`; None was not answered.

    `unanswered` are the sides whose request failed. Without `base` nothing can be compared.
    """

    prompt: int
    again: ComparedAnswers | None
    candidate: ComparedAnswers | None
    unanswered: tuple[Side, ...] = ()


def compare(base: Answer, other: Answer) -> ComparedAnswers:
    """The positions of two answers up to and including the first that differs."""
    alike = 0
    for one, two in zip(base.tokens, other.tokens, strict=False):
        if one != two:
            break
        alike += 1
    end = min(alike + 1, len(base.tokens), len(other.tokens))
    pairs = zip(base.alternatives[:end], other.alternatives[:end], strict=True)
    nats = tuple(jensen_shannon(one, two) for one, two in pairs)
    return ComparedAnswers(base.tokens[:end], other.tokens[:end], nats)


def evidence(prompt: int, answers: Mapping[Side, Answer]) -> PromptEvidence:
    """The evidence of one prompt from the answers that came; a side that is missing failed."""
    base = answers.get("base")
    compared = {pair: compare(base, answers[pair]) if base and pair in answers else None for pair in PAIRS}
    missing = tuple(side for side in SIDES if side not in answers)
    return PromptEvidence(prompt, compared["again"], compared["candidate"], missing)
