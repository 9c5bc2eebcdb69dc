"""Common beginnings of prompts, as pieces that lie in the prefix caches of replicas."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Pieces(NamedTuple):
    """Prompts as pieces, a row per level: equal `names` are equal pieces, `blocks` are their KV blocks.

    No two levels have a name in common.
    """

    names: Ints
    blocks: Ints


class SharedBeginnings(Protocol):
    """The beginnings that prompts share, in order of arrival; `session` is None where a router knows none."""

    @property
    def session(self) -> Ints | None: ...

    def __len__(self) -> int: ...

    def pieces(self, block_tokens: int) -> Pieces:
        """The pieces of all prompts, in full blocks; equal pieces mean equal tokens, up to their end."""
        ...


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Tokens that each prompt shares with others; columns by request, in order of arrival.

    The first `everyone` tokens are those of every prompt, those up to `of_character` of every prompt of
    its `character`, those up to `of_session` of its `session`, and those up to `of_history` of its session
    while that has the same `cut`. The rest belongs to this prompt alone. The four ends ascend.
    """

    everyone: Ints
    character: Ints
    of_character: Ints
    session: Ints
    of_session: Ints
    cut: Ints
    of_history: Ints

    def __len__(self) -> int:
        return len(self.everyone)

    def pieces(self, block_tokens: int) -> Pieces:
        """The same for all prompts at once: a level's blocks live and die together, from its end."""
        ends = np.array([self.everyone, self.of_character, self.of_session, self.of_history]) // block_tokens
        blocks = np.diff(ends, axis=0, prepend=0)
        names, count = np.zeros_like(blocks), 1
        both: Ints = self.session * (int(self.cut.max(initial=0)) + 1) + self.cut
        for level, name in enumerate((self.character, self.session, both), 1):
            known, names[level] = np.unique(name, return_inverse=True)
            names[level] += count
            count += len(known)
        return Pieces(names, blocks)


Runs = Sequence[tuple[int, int]]
"""The owners of the parts of a prompt, as places in the order of arrival, and the tokens where they end."""


class BlockPrefixes:
    """Runs that each prompt shares, in order of arrival; `part` is the part of a fleet that each goes to.

    Requests of different parts meet on no replica, so that they share nothing.
    """

    session = None
    """Prompts of a trace belong to no session that a router could know."""

    def __init__(self, runs: Sequence[Runs], part: Ints) -> None:
        self._runs, self._part = runs, part
        self._given = [0] * len(runs)  # the end of what later prompts share of each one's own text
        for row in runs:
            for owner, end in row:
                self._given[owner] = max(self._given[owner], end)

    def __len__(self) -> int:
        return len(self._runs)

    def pieces(self, block_tokens: int) -> Pieces:
        """A level for each run of the prompt that has most, with the owner's name in each part."""
        # The runs of each prompt, and what later ones share of its own text.
        rows = [[*row, (i, end)] if (end := self._given[i]) else row for i, row in enumerate(self._runs)]
        levels = max(map(len, rows), default=0)
        names, blocks = (np.zeros((levels, len(rows)), np.int64) for _ in range(2))
        parts = int(self._part.max(initial=0)) + 1
        for i, row in enumerate(rows):
            at, part = 0, int(self._part[i])
            for level, (owner, end) in enumerate(row):
                names[level, i], blocks[level, i] = owner * parts + part, end // block_tokens - at
                at = end // block_tokens
        return Pieces(names, blocks)
