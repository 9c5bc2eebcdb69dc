"""Prompts of a trace that begin alike, by the hashes of their blocks.

A prompt's beginning is told by owners: the request that first had a block owns it. A block is the same if
all blocks before it are too, so that a prompt is a row of runs, each the text of one owner, and a rest of
its own.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadgen.traffic.lengths import Ints

Run = tuple[int, int]
"""The owner's seq, and the token of the prompt at which its text ends here."""
Runs = tuple[Run, ...]


class BlockTree:
    """All blocks so far, each under the one before it."""

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens
        self._known: dict[tuple[int, int], tuple[int, int, int]] = {}  # below, hash -> number, owner, end

    def add(self, owner: int, blocks: Sequence[int], tokens: int) -> Runs:
        """The runs that earlier prompts own of one with these `blocks`; the rest is then `owner`'s."""
        runs: list[Run] = []
        below = 0
        for place, block in enumerate(blocks, 1):
            known = self._known.get((below, block))
            if known is None:
                known = (len(self._known) + 1, owner, min(place * self._size, tokens))
                self._known[below, block] = known
            below, first, end = known
            if first != owner:
                if runs and runs[-1][0] == first:
                    runs.pop()
                runs.append((first, min(end, tokens)))
        return tuple(runs)


def begins(
    blocks: Sequence[Sequence[int]],
    block_tokens: int,
    lines: Ints,
    tokens: Ints,
    seq: Ints,
    stream: Ints | None = None,
) -> NDArray[np.object_]:
    """The `Runs` of every request, in order of arrival; `lines` are those of a trace with these `blocks`.

    Every node's stream is a service of its own, and a trace that begins again is other chats: neither shares
    with the others.
    """
    runs = np.empty(len(lines), dtype=object)
    trees: dict[int, BlockTree] = {}
    last: dict[int, int] = {}
    streams = [-1] * len(lines) if stream is None else stream.tolist()
    for i, (line, node) in enumerate(zip(lines.tolist(), streams, strict=True)):
        if line <= last.get(node, -1) or node not in trees:
            trees[node] = BlockTree(block_tokens)
        last[node] = line
        runs[i] = trees[node].add(int(seq[i]), blocks[line], int(tokens[i]))
    return runs


def reusable_tokens(begun: NDArray[np.object_]) -> Ints:
    """Tokens that an earlier prompt began with, by request."""
    return np.array([runs[-1][1] if runs else 0 for runs in begun], dtype=np.int64)
