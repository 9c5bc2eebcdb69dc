"""Answers that show their tokens: ids, and log probabilities with their alternatives, in vLLM's shapes.

Fields, their order and the offsets are those of /v1/completions of vLLM 0.32.0 (its CompletionLogProbs,
CompletionResponseChoice and CompletionResponseStreamChoice) with `return_tokens_as_token_ids`: a token is
named "token_id:123", and `text_offset` counts those names. The answer's `text` stays " token" for each.
"""

from itertools import accumulate
from typing import Any

from serve_apps.simulated.greedy_text import GreedyText, token_ids
from serve_apps.simulated.openai_answers import (
    TOKEN_TEXT,
    ApiRequest,
    OpenAiAnswer,
    Reveal,
    ServedModel,
    event,
)


class RevealedAnswer(OpenAiAnswer):
    """The bytes of an answer to a request with `reveal`; the id of the request salts its noise."""

    def __init__(self, request: ApiRequest, request_id: str, created_s: int, served: ServedModel) -> None:
        super().__init__(request, request_id, created_s, served)
        self._reveal = request.reveal or Reveal(())
        self._prompt = token_ids(self._reveal.prompt, served.vocab)
        self._text = GreedyText(self._prompt, served.vocab, request_id, served.defect)
        self._offsets = [0]

    def write(self, count: int) -> None:
        """Find the first `count` tokens: step by step, since a long answer at once holds up the others."""
        self._text.write(count)
        lengths = (len(_named(token)) for token in self._text.tokens[len(self._offsets) - 1 : count])
        self._offsets += list(accumulate(lengths, initial=self._offsets[-1]))[1:]

    def tokens(self, seen: int, count: int) -> bytes:
        """The SSE events of tokens `seen` to `count` - 1 (from 0), each with its token."""
        self.write(count)
        return b"".join(self._event(place) for place in range(seen, count))

    def _event(self, place: int) -> bytes:
        ids, last = self._reveal.token_ids, place + 1 == self.request.output_tokens
        choice = {
            "index": 0,
            "text": TOKEN_TEXT,
            "logprobs": self._logprobs(place, place + 1),
            "finish_reason": "length" if last else None,
            "stop_reason": None,
            "prompt_token_ids": self._prompt if ids and not place else None,
            "token_ids": [self._text.tokens[place]] if ids else None,
        }
        usage = {"usage": self._usage(place + 1)} if self.request.usage_in_each else {}
        return event(self._head | {"choices": [choice]} | usage)

    def _choice(self) -> dict[str, Any]:
        ids, count = self._reveal.token_ids, self.request.output_tokens
        self.write(count)
        return super()._choice() | {
            "logprobs": self._logprobs(0, count),
            "token_ids": self._text.tokens[:count] if ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": self._prompt if ids else None,
            "routed_experts": None,
        }

    def _logprobs(self, begin: int, end: int) -> dict[str, Any] | None:
        """Log probabilities of tokens `begin` to `end` - 1; of each at least the token itself."""
        if self._reveal.logprobs is None:
            return None
        tokens, tops = self._text.tokens[begin:end], self._text.tops[begin:end]
        shown = max(1, self._reveal.logprobs)
        return {
            "text_offset": self._offsets[begin:end],
            "token_logprobs": [top[token] for token, top in zip(tokens, tops, strict=True)],
            "tokens": [_named(token) for token in tokens],
            "top_logprobs": [{_named(token): top[token] for token in list(top)[:shown]} for top in tops],
        }


def _named(token: int) -> str:
    return f"token_id:{token}"
