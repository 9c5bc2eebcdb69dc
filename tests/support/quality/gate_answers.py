"""A whole answer to a question of the quality gate, in the shape of vLLM's."""

from typing import Any

from loadgen.quality.questions import ALTERNATIVES

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
