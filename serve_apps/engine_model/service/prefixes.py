"""Common beginnings of prompts, as pieces that lie in the prefix caches of replicas."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Runs = Sequence[tuple[int, int]]
"""The owners of the parts of a prompt, as places in the order of arrival, and the tokens where they end."""


class Pieces(NamedTuple):
    """Prompts in order of arrival as pieces, a row per level: equal `names` are equal pieces.

    They end at the prompt's tokens `ends`, and no two levels have a name in common. `session` is None where a
    router knows none.
    """

    names: Ints
    ends: Ints
    session: Ints | None = None


def session_pieces(
    everyone: Ints,
    character: Ints,
    of_character: Ints,
    session: Ints,
    of_session: Ints,
    cut: Ints,
    of_history: Ints,
) -> Pieces:
    """The pieces of prompts of sessions; columns by request, in order of arrival.

    The first `everyone` tokens are those of every prompt, those up to `of_character` of every prompt of
    its `character`, those up to `of_session` of its `session`, and those up to `of_history` of its session
    while that has the same `cut`. The rest belongs to this prompt alone. The four ends ascend.
    """
    ends = np.array([everyone, of_character, of_session, of_history])
    names, count = np.zeros_like(ends), 1
    both: Ints = session * (int(cut.max(initial=0)) + 1) + cut
    for level, name in enumerate((character, session, both), 1):
        known, names[level] = np.unique(name, return_inverse=True)
        names[level] += count
        count += len(known)
    return Pieces(names, ends, session)


def trace_pieces(runs: Sequence[Runs], part: Ints) -> Pieces:
    """The pieces of prompts that share `runs`: a level for each run of the prompt that has most.

    `part` is the part of a fleet that each goes to; requests of different parts meet on no replica, so that
    they share nothing.
    """
    shared = [0] * len(runs)  # the end of what later prompts share of each one's own text
    for row in runs:
        for owner, end in row:
            shared[owner] = max(shared[owner], end)
    rows = [[*row, (i, end)] if (end := shared[i]) else row for i, row in enumerate(runs)]
    names, ends = np.zeros((2, max(map(len, rows), default=0), len(rows)), np.int64)
    parts = int(part.max(initial=0)) + 1
    for i, row in enumerate(rows):
        for level, (owner, end) in enumerate(row):
            names[level, i], ends[level, i] = owner * parts + int(part[i]), end
    return Pieces(names, ends)
