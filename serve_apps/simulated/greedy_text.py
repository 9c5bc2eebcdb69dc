"""The simulated engine's text where its tokens are shown: token ids and their log probabilities.

They look like a language model's at temperature 0 and are the same on every replica and in every run: all
of a position follows from the prompt's token ids, the tokens answered before it and, by a little, the name
of the request, through hashes that no process salts.
"""

import hashlib
import math
from array import array
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

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
        (first, step, exponent, wrong), spread = _split(_draws(self._context, 4 + count), 4)
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


def _split(draws: Floats, first: int) -> tuple[list[float], Floats]:
    return draws[:first].tolist(), draws[first:]


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
