"""Source of prompt tokens: one long string with the position of each token, and words that spell names."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from conf.specs.experiment import Workload
from loadgen.traffic.lengths import UNIQUE_TOKENS

POOL_TOKENS = 65_536
TokenBytes = bytes | memoryview


class TokenPool:
    """Tokens one after the other, repeated without end; a slice begins with one of the tokens `openings`.

    `written` holds all of them, `places` the position of each, `gap` the bytes between two.
    """

    def __init__(self, written: bytes, places: Sequence[int], openings: Sequence[int], gap: int) -> None:
        self._once, self._places, self._openings, self._gap = written, places, openings, gap
        self._twice = written * 2

    def slice(self, number: int, tokens: int) -> memoryview:
        """`tokens` tokens from the opening that `number` selects, as a view: a copy would cost time."""
        first = self._openings[number % len(self._openings)]
        last = first + tokens
        size = len(self._places)
        pool = self._twice if last <= 2 * size else self._once * -(-last // size)
        return memoryview(pool)[self._place(first) : max(self._place(first), self._place(last) - self._gap)]

    def _place(self, token: int) -> int:
        times, rest = divmod(token, len(self._places))
        return times * len(self._once) + self._places[rest]


@dataclass(frozen=True, slots=True)
class PromptLevel:
    """Writes one level of a prompt: its name, `head`, text, `tail`. In a chat `role` says it."""

    pool: TokenPool
    role: str = "user"
    head: Sequence[bytes] = ()
    tail: Sequence[bytes] = ()

    def pieces(self, name: Sequence[bytes], number: int, tokens: int) -> list[TokenBytes]:
        """`tokens` tokens, the name first; without the tail if there is no room for it."""
        begin = [*name, *self.head][:tokens]
        end = self.tail if len(begin) + len(self.tail) <= tokens else ()
        room = tokens - len(begin) - len(end)
        return [*begin, self.pool.slice(number, room), *end] if room else [*begin, *end]


@dataclass(frozen=True, slots=True)
class PromptSource:
    """The tokens of all prompts of a run, and the words that spell a number together with `salt`.

    `levels` are those of a conversation: system prompt, character, persona and history.
    """

    separator: bytes
    words: Sequence[bytes]
    salt: int
    pool: TokenPool
    levels: Sequence[PromptLevel] = field(default_factory=tuple)

    def name(self, number: int) -> list[bytes]:
        """`UNIQUE_TOKENS` tokens that spell salt and number in base len(words)."""
        base, words = len(self.words), self.words
        rest, name = (self.salt << 40) + number, []
        for _ in range(UNIQUE_TOKENS):
            rest, digit = divmod(rest, base)
            name.append(words[digit])
        return name


def synthetic(workload: Workload, vocab: int, salt: int) -> PromptSource:
    """Random token ids, or as many words of digits, from those with the most digits (10000 to 99999 of
    151936).
    """
    digits = len(str(vocab - 1)) - (1 if vocab <= 2 * 10 ** (len(str(vocab - 1)) - 1) else 0)
    low, high = 10 ** (digits - 1), min(10**digits, vocab)
    rng = np.random.default_rng(salt)
    ids = rng.integers(low, high, size=2 * POOL_TOKENS)
    separator = b"," if workload.prompt == "token_ids" else b" "
    table = np.full((len(ids), digits + 1), ord(separator), np.uint8)
    table[:, :-1] = ids[:, None] // 10 ** np.arange(digits)[::-1] % 10 + ord("0")
    written = table.tobytes()
    pool = TokenPool(written, range(0, len(written), digits + 1), range(POOL_TOKENS), len(separator))
    return PromptSource(
        separator, _words(low, high), int(rng.integers(0, 2**31)), pool, 4 * (PromptLevel(pool),)
    )


@cache
def _words(low: int, high: int) -> list[bytes]:
    """The numbers from `low` to below `high` as text."""
    return [b"%d" % i for i in range(low, high)]
