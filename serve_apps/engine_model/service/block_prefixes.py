"""Prompts that share beginnings block by block, as in a recorded trace, for the prefix caches of replicas."""

from collections.abc import Sequence

import numpy as np

from serve_apps.engine_model.scheduler.kv_cache import Chain
from serve_apps.engine_model.service.prefix_reuse import Ints, Pieces

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

    def chain(self, i: int, block_tokens: int) -> Chain:
        """Hashes of the full blocks of prompt `i` that others may have; equal ones mean equal tokens."""
        part, found, at = int(self._part[i]), [], 0
        for owner, end in self._whole(i):
            found += [(part, owner, place) for place in range(at, end // block_tokens)]
            at = max(at, end // block_tokens)
        return tuple(found)

    def pieces(self, block_tokens: int) -> Pieces:
        """A level for each run of the prompt that has most, with the owner's name in each part."""
        rows = [self._whole(i) for i in range(len(self))]
        levels = max(map(len, rows), default=0)
        names, blocks = (np.zeros((levels, len(rows)), np.int64) for _ in range(2))
        parts = int(self._part.max(initial=0)) + 1
        for i, row in enumerate(rows):
            at, part = 0, int(self._part[i])
            for level, (owner, end) in enumerate(row):
                names[level, i], blocks[level, i] = owner * parts + part, end // block_tokens - at
                at = end // block_tokens
        return Pieces(names, blocks, parts * len(rows))

    def _whole(self, i: int) -> list[tuple[int, int]]:
        """The runs of a prompt, and what later ones share of its own text."""
        end = self._given[i]
        return [*self._runs[i], (i, end)] if end else list(self._runs[i])
