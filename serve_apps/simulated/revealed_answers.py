"""Answers that show token ids and log probabilities, in the shapes of vLLM 0.32.0 with
`return_tokens_as_token_ids`: a token is named "token_id:123", and `text_offset` counts those names."""

import hashlib
import math
from array import array
from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve_apps.simulated.openai_answers import ApiRequest, OpenAiAnswer, Reveal, ServedModel


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

    def tokens(self, sent: int, count: int) -> bytes:
        """The SSE events of tokens `sent` to `count` - 1 (from 0), each with its token."""
        self.write(count)
        return b"".join(self._event(place) for place in range(sent, count))

    def _event(self, place: int) -> bytes:
        ids, last = self._reveal.token_ids, place + 1 == self.request.output_tokens
        return self._chunk(
            "length" if last else None,
            self._usage(place + 1) if self.request.usage_in_each else None,
            logprobs=self._logprobs(place, place + 1),
            prompt_token_ids=self._prompt if ids and not place else None,
            token_ids=[self._text.tokens[place]] if ids else None,
        )

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


Floats = NDArray[np.float64]
CANDIDATES = 24
"""Tokens of a position with probabilities of their own; the rest of the vocabulary has one together. They are
a few more than are shown, so that noise changes which are (our choice)."""
LEAST_EXPONENT, MEAN_EXPONENT_ABOVE, MOST_EXPONENT = 1.2, 2.0, 10.0
"""Probabilities fall as a power of the rank, as Zipf's law has it; the exponent of a position is exponential
above the least. The likeliest token then has 0.73 in the median, and less than one half in 28 % of positions
(our choice: some certain, some open, as in text)."""
SPREAD = 0.5
"""Scale of the Gumbel draw that is added to each log probability, so that near ties occur (our choice)."""
NOISE_SD = 0.008
"""Deviation of a logit from answer to answer: the mean KL divergence of two is then 2.5e-5 nats, as
llama.cpp#7150 has it of BF16 against FP16, and one position in some 600 has another likeliest token."""
DECIMALS = 6
"""A log probability is answered to a millionth: what libraries may differ in stands far behind that."""
DIGEST_BYTES = 32
UNIT = 2.0**-64
_LN_RANKS = np.log(np.arange(1, CANDIDATES + 1))


def token_ids(prompt: Sequence[Hashable], vocab: int) -> list[int]:
    """The ids themselves, or for each word of a text one of `vocab` ids, always the same."""
    if all(isinstance(token, int) for token in prompt):
        return [token for token in prompt if isinstance(token, int)]
    words = (hashlib.blake2b(str(word).encode(errors="replace"), digest_size=8).digest() for word in prompt)
    return [int.from_bytes(word, "little") % vocab for word in words]


class GreedyText:
    """The answer to a prompt, as far as it is `written`: always the likeliest token.

    `tops` holds of each position the log probabilities (nats) of its `CANDIDATES` likeliest tokens by id, in
    falling order. `salt` names the request: answers with other salts differ by `NOISE_SD`, as an engine's do
    when its batches differ. `defect` is the share of positions (0 to 1), whatever the salt, where the
    candidates have each other's probabilities; the text then goes on from the wrong token.
    """

    def __init__(self, prompt: Sequence[int], vocab: int, salt: str, defect: float = 0.0) -> None:
        self.tokens: list[int] = []
        self.tops: list[dict[int, float]] = []
        self._vocab, self._defect = vocab, defect
        self._candidates = min(CANDIDATES, vocab)
        self._salt = hashlib.blake2b(salt.encode(errors="replace"), digest_size=DIGEST_BYTES).digest()
        self._context = hashlib.blake2b(array("q", prompt).tobytes(), digest_size=DIGEST_BYTES).digest()

    def write(self, count: int) -> None:
        """Go on until there are `count` tokens, at some 30 us of CPU each."""
        while len(self.tokens) < count:
            top = self._position()
            token = next(iter(top))
            self.tokens.append(token)
            self.tops.append(top)
            so_far = self._context + token.to_bytes(8, "little")
            self._context = hashlib.blake2b(so_far, digest_size=DIGEST_BYTES).digest()

    def _position(self) -> dict[int, float]:
        count, vocab = self._candidates, self._vocab
        draws = _draws(self._context, 4 + count)
        (first, step, exponent, wrong), spread = draws[:4].tolist(), draws[4:]
        ids = _distinct(first, step, count, vocab)
        logits, rest = _zipf(exponent, spread, vocab)
        if wrong < self._defect:
            logits = np.roll(logits, count // 2)
        noise = _draws(self._context + self._salt, count) - 0.5
        logits = logits + NOISE_SD * math.sqrt(12) * noise
        known = logits - math.log(float(np.exp(logits).sum()) + rest)
        order = np.argsort(-known, kind="stable")
        logprobs = np.round(known[order], DECIMALS).tolist()
        return dict(zip([ids[place] for place in order.tolist()], logprobs, strict=True))


def _draws(seed: bytes, count: int) -> Floats:
    """Numbers of the open interval from 0 to 1 that follow from a seed, everywhere the same."""
    words = np.frombuffer(hashlib.shake_128(seed).digest(8 * count), dtype="<u8")
    return np.clip(words * UNIT, UNIT, 1 - 2.0**-53)


def _distinct(first: float, step: float, count: int, vocab: int) -> list[int]:
    """`count` ids without repetition: equally far from each other, around the vocabulary."""
    most = vocab // count
    begin, apart = int(first * vocab), min(most, 1 + int(step * most))
    return [(begin + place * apart) % vocab for place in range(count)]


def _zipf(exponent: float, spread: Floats, vocab: int) -> tuple[Floats, float]:
    """Logits of the candidates, and the weight of all other tokens together, on one scale."""
    power = min(LEAST_EXPONENT - MEAN_EXPONENT_ABOVE * math.log(exponent), MOST_EXPONENT)
    logits = -power * _LN_RANKS[: len(spread)] - SPREAD * np.log(-np.log(spread))
    # The sum of the powers beyond the candidates as an integral, times the mean of the draws.
    beyond = ((len(spread) + 0.5) ** (1 - power) - max(vocab, len(spread) + 0.5) ** (1 - power)) / (power - 1)
    return logits, math.gamma(1 - SPREAD) * beyond
