"""Answers and evidence for the quality gate."""

import math
from typing import Any

import numpy as np

from analysis.quality.answer_file import Answer, ComparedAnswers, PromptEvidence, Side
from loadgen.studies.gate_questions import ALTERNATIVES


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


PROMPT = (1, 2)


def position(token: int) -> dict[str, float]:
    return {f"token_id:{token + place}": -1.0 - 0.5 * place for place in range(ALTERNATIVES)}


def good(tokens: tuple[int, ...] = (7, 40, 7)) -> dict[str, Any]:
    """A whole answer as vLLM 0.32.0 writes it."""
    shown = {
        "text_offset": [10 * place for place in range(len(tokens))],
        "token_logprobs": [-1.0] * len(tokens),
        "tokens": [f"token_id:{token}" for token in tokens],
        "top_logprobs": [position(token) for token in tokens],
    }
    choice = {"index": 0, "text": "abc", "logprobs": shown, "finish_reason": "length", "stop_reason": None}
    choice |= {"token_ids": list(tokens), "prompt_logprobs": None, "prompt_token_ids": list(PROMPT)}
    usage = {"prompt_tokens": 2, "total_tokens": 2 + len(tokens), "completion_tokens": len(tokens)}
    return {"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": usage, "metrics": None}
