"""Common beginnings of prompts: of all of them, of a character, of a session, of a history.

Knows tokens and blocks of prompts; knows no cache and no time.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serve_apps.engine_model.scheduler.kv_cache import Chain

Ints = NDArray[np.int64]
LEVELS = 4


class Pieces(NamedTuple):
    """Prompts as pieces, a row per level: equal `names` are equal pieces, `blocks` are their KV blocks.

    Names are numbers from 0 to below `known`; no two levels have one in common.
    """

    names: Ints
    blocks: Ints
    known: int


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
