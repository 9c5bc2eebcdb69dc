"""Answers of three sides to one prompt, and where two of them differ.

The sides are `base`, the configuration that decides what is right, `again`, the same once more (the repeat),
whose distance from `base` is the noise of batching, and `candidate`.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Alternatives = Mapping[int, float]
"""The most likely tokens at a position: log probability (nats) by token id."""

MOST_NATS = math.log(2)
"""Jensen-Shannon divergence of distributions that share nothing."""
ROUNDING = 1e-3
"""Log probability (nats) above 0 that is taken for 0: half precision rounds to 2^-11 of the value."""


def jensen_shannon(a: Alternatives, b: Alternatives) -> float:
    """A lower bound of the Jensen-Shannon divergence over all tokens, in nats, 0 to ln 2; symmetric.

    Tokens are put together, which cannot raise a divergence (data processing): those in both stand alone, and
    beside the rest is the part that one side alone tells. Each of its tokens is at most as likely on the
    other side as the least likely that this one tells, and within that the part is taken to be as brings both
    nearest. Without it, answers that share no likely token would not diverge at all. Raises ValueError as
    `check` does.
    """
    check(a)
    check(b)
    return max(_bound(a, b), _bound(b, a))


def check(alternatives: Alternatives) -> None:
    """Raise ValueError unless every value can be a log probability; that of an impossible token is -inf."""
    for token, nats in alternatives.items():
        if not nats <= ROUNDING:
            raise ValueError(f"{nats:g} of token {token} is no log probability")


def _bound(a: Alternatives, b: Alternatives) -> float:
    """The divergence with the tokens that only `a` tells as a part of their own."""
    both = sorted(a.keys() & b.keys())
    known_a, known_b = ([_probability(of[token]) for token in both] for of in (a, b))
    own = [_probability(nats) for token, nats in a.items() if token not in b]
    alone = math.fsum(own)
    rest_a, rest_b = _rest([*known_a, alone]), _rest(known_b)
    even = rest_b * alone / (alone + rest_a) if alone else 0.0
    unseen = min(even, len(own) * _probability(min(b.values(), default=0.0)))
    cells_a, cells_b = [*known_a, alone, rest_a], [*known_b, unseen, rest_b - unseen]
    size_a, size_b = (max(1.0, math.fsum(cells)) for cells in (cells_a, cells_b))
    total = math.fsum(_part(p / size_a, q / size_b) for p, q in zip(cells_a, cells_b, strict=True))
    return min(max(total, 0.0), MOST_NATS)


def _probability(nats: float) -> float:
    return math.exp(min(nats, 0.0))


def _rest(known: list[float]) -> float:
    """Probability of all other tokens; rounding may leave it below 0."""
    return max(0.0, 1.0 - math.fsum(known))


def _part(p: float, q: float) -> float:
    """Part of one token, or of the rest, in the divergence."""
    middle = (p + q) / 2
    return (_towards(p, middle) + _towards(q, middle)) / 2


def _towards(p: float, middle: float) -> float:
    return p * math.log(p / middle) if p > 0 else 0.0


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
    for ours, two in zip(base.tokens, other.tokens, strict=False):
        if ours != two:
            break
        alike += 1
    end = min(alike + 1, len(base.tokens), len(other.tokens))
    pairs = zip(base.alternatives[:end], other.alternatives[:end], strict=True)
    nats = tuple(jensen_shannon(ours, two) for ours, two in pairs)
    return ComparedAnswers(base.tokens[:end], other.tokens[:end], nats)


def evidence(prompt: int, answers: Mapping[Side, Answer]) -> PromptEvidence:
    """The evidence of one prompt from the answers that came; a side that is missing failed."""
    base = answers.get("base")
    compared = {pair: compare(base, answers[pair]) if base and pair in answers else None for pair in PAIRS}
    missing = tuple(side for side in SIDES if side not in answers)
    return PromptEvidence(prompt, compared["again"], compared["candidate"], missing)
