"""Common beginnings of prompts, and the prefix caches of many replicas as lists of such pieces.

The rules are those of vLLM's pool, for pieces that are used as a whole (`Prefixes`): a prompt uses its pieces
from the first to the last, a replica forgets what was used longest ago, of one prompt the last blocks
first. Two simplifications: blocks are used when their request arrives, not when it ends, and count
from then on in full, with those of its answer. Running requests are the newest, so that none
of theirs is forgotten.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from serve_apps.engine_model.compiled.native import native
from serve_apps.engine_model.scheduler.kv_cache import Chain

Ints = NDArray[np.int64]
MIX, MIX_SHIFT = 2654435761, 15
"""Multiplicative hashing (Knuth, volume 3, 6.4); a key below 2**31 times this is below 2**63."""


class Pieces(NamedTuple):
    """Prompts as pieces, a row per level: equal `names` are equal pieces, `blocks` are their KV blocks.

    Names are numbers from 0 to below `known`; no two levels have one in common.
    """

    names: Ints
    blocks: Ints
    known: int


class SharedBeginnings(Protocol):
    """The beginnings that prompts share, in order of arrival; `session` is None where a router knows none."""

    @property
    def session(self) -> Ints | None: ...

    def __len__(self) -> int: ...

    def chain(self, i: int, block_tokens: int) -> Chain:
        """Hashes of the full blocks of prompt `i` that others may have; equal ones mean equal tokens."""
        ...

    def pieces(self, block_tokens: int) -> Pieces:
        """The same for all prompts at once."""
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

    def chain(self, i: int, block_tokens: int) -> Chain:
        """Hashes of the full blocks of prompt `i` that others may have; equal ones mean equal tokens."""
        first, second, third, end = (int(column[i]) // block_tokens for column in self._ends)
        character, session, cut = (int(column[i]) for column in (self.character, self.session, self.cut))
        return (
            *((0, at) for at in range(first)),
            *((1, character, at) for at in range(first, second)),
            *((2, session, at) for at in range(second, third)),
            *((3, session, cut, at) for at in range(third, end)),
        )

    def pieces(self, block_tokens: int) -> Pieces:
        """The same for all prompts at once: a level's blocks live and die together, from its end."""
        ends = np.array(self._ends) // block_tokens
        blocks = np.diff(ends, axis=0, prepend=0)
        names, count = np.zeros_like(blocks), 1
        for level, name in enumerate((self.character, self.session, _both(self.session, self.cut)), 1):
            known, names[level] = np.unique(name, return_inverse=True)
            names[level] += count
            count += len(known)
        return Pieces(names, blocks, count)

    @property
    def _ends(self) -> tuple[Ints, Ints, Ints, Ints]:
        return self.everyone, self.of_character, self.of_session, self.of_history


def _both(session: Ints, cut: Ints) -> Ints:
    """One number for each pair."""
    both: Ints = session * (int(cut.max(initial=0)) + 1) + cut
    return both


def caches(pieces: Pieces, own_blocks: Ints, replicas: int, room_blocks: int) -> tuple[Any, ...]:
    """Empty caches of `room_blocks` on every replica, as `found` wants them.

    No request finds the `own_blocks` of another, of prompt and answer. Raises ValueError for more pieces than
    can be told apart.
    """
    count = len(own_blocks)
    if pieces.known * replicas >= 2**31:
        raise ValueError(f"{pieces.known} prefixes on {replicas} replicas are too many; simulate less")
    used = [int(np.count_nonzero(blocks)) for blocks in pieces.blocks]
    known = [int(names.max(initial=-1) - names.min(initial=0) + 1) * replicas for names in pieces.names]
    entries = sum(min(pair) for pair in zip(used, known, strict=True))
    size = 1 << (2 * entries + 16).bit_length()
    return (
        *(pieces.names, pieces.blocks, own_blocks.copy()),
        *(np.full((len(pieces.names), count), -1, np.int32), np.full(count, -1, np.int32)),
        *(np.full(replicas, -1, np.int32) for _ in range(2)),
        np.zeros(replicas, np.int64),
        *(np.full(size, -1, np.int64), np.zeros(size, np.int32), np.full(size, -1, np.int32)),
        room_blocks,
    )


@native
def found(j: Any, r: Any, caches: Any) -> Any:
    """Blocks of request `j` that replica `r` has in its cache; afterwards it has all of them.

    A piece of a replica has a place in an open table (`keys`): how many of its blocks are `held`, and
    which request used it last. The requests of a replica form a list from `heads` by `after`; what the
    first of it used last is forgotten first.
    """
    names, blocks, own, places, after, heads, tails, used, keys, held, last, room = caches
    mask = len(keys) - 1
    hit, whole, grown = 0, True, own[j]
    for level in range(len(names)):
        asked = blocks[level, j]
        if asked == 0:
            continue
        key = names[level, j] * len(heads) + r
        at = (key * MIX >> MIX_SHIFT) & mask
        while keys[at] != key and keys[at] >= 0:
            at = (at + 1) & mask
        keys[at] = key
        places[level, j] = at
        if whole:
            hit += min(held[at], asked)
            whole = held[at] >= asked
        if held[at] < asked:
            grown += asked - held[at]
            held[at] = asked
        last[at] = j
    used[r] += grown
    if heads[r] < 0:
        heads[r] = j
    else:
        after[tails[r]] = j
    tails[r] = j
    oldest, over = heads[r], used[r] - room
    while over > 0:
        gone = min(over, own[oldest])
        own[oldest] -= gone
        over -= gone
        for level in range(len(names) - 1, -1, -1):
            at = places[level, oldest]
            if at >= 0 and last[at] == oldest:
                gone = min(over, held[at])
                held[at] -= gone
                over -= gone
        if over > 0:
            oldest = after[oldest]
    heads[r] = oldest
    used[r] = min(used[r], room)
    return hit
