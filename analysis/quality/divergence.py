"""Divergence of two next-token distributions of which only the most likely tokens are known."""

import math
from collections.abc import Mapping

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
