"""Answers and evidence for the quality gate, made from letters and numbers."""

import math

import numpy as np

from analysis.quality.answers import Answer, ComparedAnswers, PromptEvidence, Side


def answer(letters: str) -> Answer:
    """An answer of one token per letter, each with 0.9 of the probability; Z has 0.09."""
    tokens = tuple(map(ord, letters))
    return Answer(tokens, tuple({token: math.log(0.9), ord("Z"): math.log(0.09)} for token in tokens))


def comparison(nats: float, positions: int = 4, flipped: bool = False) -> ComparedAnswers:
    """Two answers that diverge by so much at each position."""
    base = tuple(range(positions))
    return ComparedAnswers(base, (*base[:-1], 99 if flipped else base[-1]), (nats,) * positions)


def prompt(
    number: int, again: float, candidate: float, *failed: Side, flipped: bool = False
) -> PromptEvidence:
    """Evidence of a prompt whose repeat and candidate diverge by so much everywhere."""
    known = "base" not in failed
    return PromptEvidence(
        number,
        comparison(again) if known and "again" not in failed else None,
        comparison(candidate, flipped=flipped) if known and "candidate" not in failed else None,
        failed,
    )


def prompts(count: int, seed: int, excess: float = 0.0, noise: float = 0.004) -> list[PromptEvidence]:
    """Prompts whose candidate diverges by `excess` more on average, all between 0 and twice the mean."""
    rng = np.random.default_rng(seed)
    again, candidate = rng.uniform(0, 2 * noise, count), rng.uniform(0, 2 * (noise + excess), count)
    flips = rng.random(count) < 0.1
    return [
        prompt(number, float(again[number]), float(candidate[number]), flipped=bool(flips[number]))
        for number in range(count)
    ]
