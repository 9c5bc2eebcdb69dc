"""The prefix caches of many replicas as lists of prompts' pieces; knows no time, only the order of arrivals.

The rules are those of vLLM's pool, for pieces that are used as a whole (`Prefixes`): a prompt uses its pieces
from the first to the last, a replica forgets what was used longest ago, of one prompt the last blocks
first. Two simplifications: blocks are used when their request arrives, not when it ends, and count
from then on in full, with those of its answer. Running requests are the newest, so that none
of theirs is forgotten.
"""

from typing import Any

import numpy as np

from serve_apps.engine_model.compiled.native import native
from serve_apps.engine_model.service.prefixes import LEVELS, Ints, Pieces

MIX, MIX_SHIFT = 2654435761, 15
"""Multiplicative hashing (Knuth, volume 3, 6.4); a key below 2**31 times this is below 2**63."""


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
        *(np.full((LEVELS, count), -1, np.int32), np.full(count, -1, np.int32)),
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
    for level in range(4):
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
        for level in range(3, -1, -1):
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
