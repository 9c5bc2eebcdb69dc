"""The arrival schedule: every planned request of a window as numpy arrays; its tokens are drawn here."""

import itertools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.specs.experiment import Lengths
from conf.specs.request_sizes import Images

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

PHASES = ("warmup", "ramp", "transition", "window", "bridge", "retracted")
NS = 1_000_000_000

Bounds = Mapping[str, tuple[int, int]]
"""Start and end of adjoining phases by name, in ns."""
Run = tuple[int, int]
"""The owner's seq, and the token of the prompt at which its text ends here."""
Runs = tuple[Run, ...]


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
      own (`Runs`), `reusable_tokens` in number. None unless a trace says them.

    The other columns belong to conversations and are None without them; `turn` then counts from the session's
    own beginning. Prompts of one `character` share their first `character_tokens`; those of one session share
    `persona_tokens` more; those with the same `history_cut` (the first history token that is kept) share the
    rest, as far as the shorter one goes.
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

    def where(self, mask: NDArray[np.bool_] | Ints | slice) -> "ArrivalSchedule":
        """The requests selected by a boolean mask, their places or a slice."""
        arrays: dict[str, Any] = {name: values[mask] for name, values in self._columns().items()}
        return replace(self, **arrays)

    def followed_by(self, later: "ArrivalSchedule") -> "ArrivalSchedule":
        """This schedule and a later one, joined as one window, this one's."""
        whole = joined([self, later])
        if whole.session is None or whole.character is not None:
            return whole
        return replace(whole, turn=turns(whole.session))


@dataclass(slots=True)
class Planned:
    """One request of the schedule as plain numbers; a `closed` loop sets `due_ns` when a follower starts.

    `session` is -1 without sessions, `character` without conversations. `free_ns`, on the run's clock, is
    when the turn before ended, where it was waited for.
    """

    seq: int
    window_index: int
    phase: str
    due_ns: int
    input_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    stream: int | None = None
    session: int = -1
    turn: int = 0
    image_tokens: int = 0
    begins: Runs = ()
    reusable_tokens: int | None = None
    character: int = -1
    character_tokens: int = 0
    persona_tokens: int = 0
    history_cut: int = 0
    free_ns: int | None = None
    closed: bool = False


_ABSENT = {column.name for column in fields(ArrivalSchedule) if column.default is None} - {"line"}
OPTIONAL: dict[str, Any] = {
    column.name: column.default for column in fields(Planned) if column.name in _ABSENT
}
"""Columns that a schedule may lack, in the order of `Planned`, and what stands for them then."""


def planned(schedule: ArrivalSchedule) -> list[Planned]:
    """The schedule row by row."""
    names = "seq", "phase", "due_ns", "input_tokens", "output_tokens", "shared_tokens", *OPTIONAL
    columns = (
        itertools.repeat(OPTIONAL[name], len(schedule)) if column is None else column.tolist()
        for name, column in ((name, getattr(schedule, name)) for name in names)
    )
    rows = zip(*columns, strict=True)
    return [Planned(seq, schedule.window_index, PHASES[phase], *rest) for seq, phase, *rest in rows]


def phases_of(due_ns: Ints, bounds_ns: Bounds) -> Ints:
    """The phase that each due time falls into, as an index into `PHASES`."""
    phase = np.zeros(len(due_ns), dtype=np.int64)
    for name, (start, end) in bounds_ns.items():
        phase[(due_ns >= start) & (due_ns < end)] = PHASES.index(name)
    return phase


def span_ns(bounds_ns: Bounds) -> tuple[int, int]:
    """Start of the first phase and end of the last."""
    return min(start for start, _ in bounds_ns.values()), max(end for _, end in bounds_ns.values())


def joined(parts: Sequence[ArrivalSchedule]) -> ArrivalSchedule:
    """One schedule after the other, as the first one's window."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in parts[0]._columns()
    }
    return replace(parts[0], **columns)


def interleaved(streams: Sequence[ArrivalSchedule], first_seq: int) -> ArrivalSchedule:
    """Several streams as one schedule in order of due time."""
    whole = joined(streams)
    ordered = whole.where(np.argsort(whole.due_ns, kind="stable"))
    return replace(ordered, seq=np.arange(first_seq, first_seq + len(ordered), dtype=np.int64))


UNIQUE_TOKENS = 8
"""Tokens that name a request, a session, a character or a cut."""
RAREST_SIGMA = 4.75
"""One normal draw in a million exceeds this many standard deviations."""


def draw_lengths(
    lengths: Lengths, count: int, rng: np.random.Generator, recorded: Ints | None = None
) -> Ints:
    """`count` token counts, each at least 1; empirical ones are `recorded`.

    Uniform ones go from floor(mean * (1 - spread)) to as far above the mean, as in vLLM's benchmark.
    """
    match lengths.kind:
        case "lognormal":
            sigma = math.sqrt(math.log1p(lengths.cv**2))
            drawn = rng.lognormal(math.log(lengths.mean) - sigma**2 / 2, sigma, size=count)
            return np.maximum(1, np.rint(drawn)).astype(np.int64)
        case "uniform":
            low = _lowest(lengths)
            return np.maximum(1, rng.integers(low, 2 * lengths.mean - low, size=count, endpoint=True))
        case "mixture":
            shares = np.array(lengths.weights)
            return rng.choice(np.array(lengths.values, dtype=np.int64), size=count, p=shares / shares.sum())
        case "fixed":
            return np.full(count, lengths.mean, dtype=np.int64)
    assert recorded is not None, f"{lengths.kind} lengths come from a trace or a population"
    return recorded


def draw_images(images: Images, count: int, rng: np.random.Generator) -> Ints | None:
    """Image tokens of each of `count` requests; None for a workload without images."""
    if not images.most:
        return None
    return rng.integers(images.least, images.most, size=count, endpoint=True) * images.tokens


def shared_with_all(input_tokens: Ints, prefix_hit: float) -> Ints:
    """Tokens that all prompts begin with, to the nearest; enough to make a prompt unique are always left."""
    unique = np.where(input_tokens > UNIQUE_TOKENS, UNIQUE_TOKENS, 1)
    shared: Ints = np.minimum(np.rint(prefix_hit * input_tokens).astype(np.int64), input_tokens - unique)
    return shared


def turns(session: Ints) -> Ints:
    """The number of earlier requests of the same session, for each request."""
    order = np.argsort(session, kind="stable")
    _, first, counts = np.unique(session[order], return_index=True, return_counts=True)
    turn = np.empty_like(order)
    turn[order] = np.arange(len(session)) - np.repeat(first, counts)
    return turn


def longest_tokens(lengths: Lengths, recorded: Ints | None = None) -> int:
    """The largest of about a million lognormal draws; of other kinds the largest possible count."""
    match lengths.kind:
        case "lognormal":
            sigma = math.sqrt(math.log1p(lengths.cv**2))
            return round(lengths.mean * math.exp(RAREST_SIGMA * sigma - sigma**2 / 2))
        case "uniform":
            return 2 * lengths.mean - _lowest(lengths)
        case "mixture":
            return max(lengths.values)
        case "fixed":
            return lengths.mean
    assert recorded is not None, f"{lengths.kind} lengths come from a trace or a population"
    return int(recorded.max())


def _lowest(lengths: Lengths) -> int:
    return math.floor(lengths.mean * (1 - lengths.spread))


def cut_tokens(history_tokens: Ints | int, room_tokens: Ints | int, step_tokens: int) -> Ints:
    """The number of oldest tokens to remove from each history so that the rest fits into its room.

    It is a whole number of steps, so the cut stays until the history has grown by a step, and with it the
    cached beginning of the prompt (as in Character.ai's prompt-poet). A step is at most three quarters of the
    room (our choice).
    """
    step = np.maximum(np.minimum(step_tokens, 3 * np.asarray(room_tokens) // 4), 1)
    excess = np.maximum(np.asarray(history_tokens) - room_tokens, 0)
    cut: Ints = -(-excess // step) * step
    return cut
