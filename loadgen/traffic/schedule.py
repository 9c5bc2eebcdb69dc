"""The arrival schedule: every planned request of a window as numpy arrays, before the first send."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.traffic.lengths import Ints, turns

PHASES = ("warmup", "ramp", "transition", "window", "bridge", "retracted")
NS = 1_000_000_000

Bounds = Mapping[str, tuple[int, int]]
"""Start and end of adjoining phases by name, in ns."""


@dataclass(frozen=True, slots=True)
class ArrivalSchedule:
    """Planned requests in order of due time; all arrays have one length.

    - `seq`: position in the run's master schedule.
    - `due_ns`: due time from the start of the run's clock.
    - `phase`: index into `PHASES`; `window_index`: the window (-1: warm-up).
    - `input_tokens` include `shared_tokens`, the beginning that all prompts share, and `image_tokens` (None
      without images).
    - `concurrency` above 0: a closed loop with that many requests in flight. `due_ns` is then only the start;
      each request is due when one before it ends.
    - `stream`: the node that a request is for; None if all nodes share one.
    - `session`: the chat user, from 0; `turn`: that user's earlier requests in this window. None without
      sessions.

    - `line`: the request's line of a trace, from 0; `begins`: the runs of its prompt that earlier requests
      own (`prefix_sharing.Runs`), `reusable_tokens` in number. None unless a trace says them.

    The other columns belong to conversations and are None without them; `turn` then counts from the session's
    own beginning. Prompts of one `character` share their first `character_tokens`; those of one session share
    `persona_tokens` more; those with the same `history_cut` (the first history token that is kept) share the
    rest, as far as the shorter one goes. `after` is the seq of the session's previous planned turn, or -1;
    that turn may have been retracted since.
    """

    window_index: int
    seq: Ints
    due_ns: Ints
    phase: Ints
    input_tokens: Ints
    output_tokens: Ints
    shared_tokens: Ints
    concurrency: int = 0
    stream: Ints | None = None
    session: Ints | None = None
    turn: Ints | None = None
    character: Ints | None = None
    character_tokens: Ints | None = None
    persona_tokens: Ints | None = None
    history_cut: Ints | None = None
    after: Ints | None = None
    image_tokens: Ints | None = None
    line: Ints | None = None
    begins: NDArray[np.object_] | None = None
    reusable_tokens: Ints | None = None

    def __len__(self) -> int:
        return len(self.seq)

    def shard(self, i: int, n: int) -> "ArrivalSchedule":
        """The requests of actor `i` of `n` (see `owner`); for any n their union is the same.

        A closed loop is shared evenly. Raises ValueError if an actor would get no part of its concurrency.
        """
        if 0 < self.concurrency < n:
            raise ValueError(f"{n} load actors cannot share a concurrency of {self.concurrency}")
        mine = self.owner(n) == i
        return replace(self.where(mine), concurrency=int(mine[: self.concurrency].sum()))

    def owner(self, n: int) -> Ints:
        """The actor, of `n`, that sends each request: seq mod n; in conversations a hash of the session.

        So the actor that sends a turn also sees the turn before it end.
        """
        if self.session is None or self.character is None:
            return self.seq % n
        numbers, places = np.unique(self.session, return_inverse=True)
        hashes = [zlib.crc32(number.to_bytes(8, "little")) % n for number in numbers.tolist()]
        return np.array(hashes, dtype=np.int64)[places]

    def _columns(self) -> dict[str, Any]:
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: values for name, values in columns.items() if isinstance(values, np.ndarray)}

    def where(self, mask: NDArray[np.bool_] | slice) -> "ArrivalSchedule":
        """The requests selected by a boolean mask or a slice."""
        arrays: dict[str, Any] = {name: values[mask] for name, values in self._columns().items()}
        return replace(self, **arrays)

    def followed_by(self, later: "ArrivalSchedule") -> "ArrivalSchedule":
        """This schedule and a later one, joined as one window, this one's."""
        columns = {name: (values, getattr(later, name)) for name, values in self._columns().items()}
        arrays: dict[str, Any] = {name: np.concatenate(both) for name, both in columns.items()}
        joined = replace(self, **arrays)
        if joined.session is None or joined.character is not None:
            return joined
        return replace(joined, turn=turns(joined.session))


def phases_of(due_ns: Ints, bounds_ns: Bounds) -> Ints:
    """The phase that each due time falls into, as an index into `PHASES`."""
    phase = np.zeros(len(due_ns), dtype=np.int64)
    for name, (start, end) in bounds_ns.items():
        phase[(due_ns >= start) & (due_ns < end)] = PHASES.index(name)
    return phase


def span_ns(bounds_ns: Bounds) -> tuple[int, int]:
    """Start of the first phase and end of the last."""
    return min(start for start, _ in bounds_ns.values()), max(end for _, end in bounds_ns.values())


def interleaved(streams: Sequence[ArrivalSchedule], first_seq: int) -> ArrivalSchedule:
    """Several streams as one schedule in order of due time."""
    columns = ["due_ns", "phase", "input_tokens", "output_tokens", "shared_tokens", "stream"]
    columns += [name for name in ("image_tokens", "line") if getattr(streams[0], name) is not None]
    joined = {name: np.concatenate([getattr(stream, name) for stream in streams]) for name in columns}
    order = np.argsort(joined["due_ns"], kind="stable")
    arrays: dict[str, Any] = {name: column[order] for name, column in joined.items()}
    return replace(streams[0], seq=np.arange(first_seq, first_seq + len(order), dtype=np.int64), **arrays)
