"""The arrival schedule: every planned request as numpy arrays, drawn from a seed before the first send.

Knows due times, phases and streams; knows nothing of who sends them.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.specs.experiment import Workload
from loadgen.traffic import trace
from loadgen.traffic.lengths import Ints, draw_images, draw_lengths, longest_tokens, shared_with_all, turns
from loadgen.traffic.population import Talks
from loadgen.traffic.processes import Floats, Profile, first_ns, renewal_ns, scaled_ns
from loadgen.traffic.sessions import Rows
from loadgen.traffic.vllm_bench_arrivals import bench_arrivals_s

PHASES = ("warmup", "ramp", "transition", "window", "bridge", "retracted")
NS = 1_000_000_000
PIECE_SEEDS = 1_000_003
"""The pieces of a segment have seeds so far apart, beyond those of other runs and repeats."""


@dataclass(frozen=True, slots=True)
class ArrivalSchedule:
    """Planned requests in order of due time; all arrays have one length.

    `seq` is the position in the run's master schedule, `due_ns` counts from the start of the run's
    clock, `phase` indexes `PHASES`, `dwell` is the segment (-1: warm-up). The first `shared_tokens` of
    `input_tokens` are those of every prompt. `concurrency` above 0 is a closed loop: that many requests
    are in flight, `due_ns` is only the start, and each request is due when one before it ends. `stream`
    is the node that a request is for; None where all nodes share one. `session` is the chat user, from 0,
    and `turn` how many requests of the same segment that one has sent before; None without sessions.

    Of conversations, and None without them: `turn` counts from the session's own beginning. Prompts of one
    `character` are the same up to `character_tokens`, those of one session for `persona_tokens` more; from
    there on those with the same `history_cut`, the first token of the history that is kept, as far as the
    shorter one goes. `after` is the seq under which the turn before was planned last, or -1; that one may
    have been retracted since.

    Of `input_tokens`, `image_tokens` are those of images; None without them.
    """

    dwell: int
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

    def __len__(self) -> int:
        return len(self.seq)

    def shard(self, i: int, n: int) -> "ArrivalSchedule":
        """The requests of actor `i` of `n` (`owner`); whatever n, the union is the same.

        A closed loop is shared as evenly. Raises ValueError where an actor would have no part in it:
        its requests would be an open loop, all due at once.
        """
        if 0 < self.concurrency < n:
            raise ValueError(f"{n} load actors cannot share a concurrency of {self.concurrency}")
        mine = self.owner(n) == i
        return replace(self.where(mine), concurrency=int(mine[: self.concurrency].sum()))

    def owner(self, n: int) -> Ints:
        """Which of `n` actors sends each request: seq mod n.

        Of conversations it is a hash of the session, the same in every process: who sends a turn sees it end.
        """
        if self.session is None or self.character is None:
            return self.seq % n
        numbers, places = np.unique(self.session, return_inverse=True)
        hashes = [zlib.crc32(number.to_bytes(8, "little")) % n for number in numbers.tolist()]
        return np.array(hashes, dtype=np.int64)[places]

    def where(self, mask: NDArray[np.bool_] | slice) -> "ArrivalSchedule":
        """The requests selected by a boolean mask or a slice."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        arrays: dict[str, Any] = {k: v[mask] for k, v in columns.items() if isinstance(v, np.ndarray)}
        return replace(self, **arrays)

    def followed_by(self, later: "ArrivalSchedule") -> "ArrivalSchedule":
        """This schedule with that of a later time, both as one segment, this one's."""
        columns = {f.name: (getattr(self, f.name), getattr(later, f.name)) for f in fields(self)}
        arrays: dict[str, Any] = {
            k: np.concatenate(v) for k, v in columns.items() if isinstance(v[0], np.ndarray)
        }
        joined = replace(self, **arrays)
        if joined.session is None or joined.character is not None:
            return joined
        return replace(joined, turn=turns(joined.session))


class Traffic:
    """Draws the requests of one workload; its `trace`, if it has one, is read once.

    The same seed and dwell give the same unit-rate arrivals and lengths at every rate, whatever ran
    before. Raises ConfigError for a trace that cannot be used.

    Conversations are a population of users that lives through all segments: what a stretch of time has of it
    depends on the seed, the rate and the time alone, on neither the dwell nor the piece.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.trace = trace.of(workload)
        self._talks = Talks(workload.conversations) if workload.conversations else None

    @property
    def longest_request_tokens(self) -> int:
        """Prompt and answer of the longest request to expect; in a trace it is one of its lines."""
        columns = self._workload.input_tokens, self._workload.output_tokens
        if talks := self._workload.conversations:
            return talks.max_prompt_tokens + longest_tokens(talks.answer_tokens)
        images = self._workload.images.most * self._workload.images.tokens
        if self.trace is None:
            return images + sum(longest_tokens(lengths) for lengths in columns)
        recorded = self.trace.input_tokens, self.trace.output_tokens
        if {lengths.kind for lengths in columns} == {"empirical"}:
            return images + int((recorded[0] + recorded[1]).max())
        return images + sum(map(longest_tokens, columns, recorded))

    def draw(
        self,
        rate_qps: float | Profile,
        bounds_ns: dict[str, tuple[int, int]],
        *,
        dwell: int,
        first_seq: int,
        seed: int,
        streams: int = 0,
        piece: int = 0,
    ) -> ArrivalSchedule:
        """One segment of the run: arrivals at `rate_qps` over adjoining phases `{name: (start, end)}`.

        A profile counts from the start of the phase `window`. A trace gives its own arrivals (`scaled_ns`),
        each with the lengths of its line where they are empirical. `streams` above 0 are so many independent
        processes of equal parts of the rate, one for each node. A segment may be drawn in several pieces.
        """
        if self._talks:
            assert not isinstance(rate_qps, Profile) and not streams, "refused by the experiment"
            return self._talking(rate_qps, bounds_ns, dwell, first_seq, seed)
        seed += PIECE_SEEDS * piece
        one = partial(self._segment, rate_qps, bounds_ns, dwell=dwell, first_seq=first_seq, seed=seed)
        return _interleaved([one(s, streams) for s in range(streams)], first_seq) if streams else one()

    def _segment(
        self,
        rate_qps: float | Profile,
        bounds_ns: dict[str, tuple[int, int]],
        stream: int = -1,
        of: int = 1,
        *,
        dwell: int,
        first_seq: int,
        seed: int,
    ) -> ArrivalSchedule:
        """The arrivals of one stream `of` so many; of stream -1 all that come to a pooled service."""
        rng = _generator(seed, dwell, 0, stream)
        start_ns = min(start for start, _ in bounds_ns.values())
        end_ns = max(end for _, end in bounds_ns.values())
        if isinstance(rate_qps, Profile):
            due, lines = self._under(rate_qps, of, bounds_ns["window"][0], start_ns, end_ns, rng)
        else:
            due, lines = self._arrive(rate_qps / of, start_ns, end_ns, rng)
        due_ns = np.maximum.accumulate(due.astype(np.int64).clip(start_ns, end_ns - 1))
        return self._schedule(dwell, first_seq, due_ns, _phases(due_ns, bounds_ns), seed, lines, stream)

    def _talking(
        self, rate_qps: float, bounds_ns: dict[str, tuple[int, int]], dwell: int, first_seq: int, seed: int
    ) -> ArrivalSchedule:
        """What the users of a population say in a stretch of time."""
        assert self._talks is not None
        start_ns = min(start for start, _ in bounds_ns.values())
        end_ns = max(end for _, end in bounds_ns.values())
        rows = self._talks.population(seed).turns(rate_qps, start_ns / NS, end_ns / NS)
        due_ns = (rows["due_s"] * NS).astype(np.int64).clip(start_ns, end_ns - 1)
        return self._said(rows, due_ns, _phases(due_ns, bounds_ns), dwell, first_seq)

    def _said(self, rows: Rows, due_ns: Ints, phase: Ints, dwell: int, first_seq: int) -> ArrivalSchedule:
        """Turns of a population as a schedule."""
        assert self._talks is not None
        seq = np.arange(first_seq, first_seq + len(rows), dtype=np.int64)
        names = ("input_tokens", "output_tokens", "session", "turn", "character", "character_tokens")
        columns = {name: rows[name].astype(np.int64) for name in (*names, "persona_tokens", "history_cut")}
        shared = np.full(len(rows), self._talks.spec.system_tokens, dtype=np.int64)
        after = self._talks.after(columns["session"], columns["turn"], seq)
        own: dict[str, Any] = {**columns, "shared_tokens": shared, "after": after}
        return ArrivalSchedule(dwell=dwell, seq=seq, due_ns=due_ns, phase=phase, **own)

    def replay(
        self, start_ns: int, duration_ns: int | None, *, dwell: int, first_seq: int, seed: int
    ) -> ArrivalSchedule:
        """The trace in its own time from its beginning, all of it or its first `duration_ns`, as `window`.

        It is one stream, whatever the routing: several addresses get its requests at random.
        """
        assert self.trace is not None, "a workload without a trace has nothing to replay"
        due_ns = self.trace.due_ns
        if duration_ns is not None:
            due_ns = due_ns[due_ns < duration_ns]
        phase = np.full(len(due_ns), PHASES.index("window"), dtype=np.int64)
        lines = np.arange(len(due_ns))
        return self._schedule(dwell, first_seq, start_ns + due_ns, phase, seed, lines)

    def first(self, count: int, rate_qps: float, *, dwell: int, seed: int) -> ArrivalSchedule:
        """The first `count` requests of a segment that begins at 0, as `window`.

        Those of `vllm bench serve` come when that tool sends them with the seed, whatever the dwell.
        """
        arrivals = self._workload.arrivals
        if arrivals.kind == "vllm_bench":
            due = bench_arrivals_s(count, rate_qps, seed, arrivals.burstiness) * NS
        else:
            due = first_ns(arrivals, rate_qps, count, _generator(seed, dwell, 0, -1))
        phase = np.full(count, PHASES.index("window"), dtype=np.int64)
        return self._schedule(dwell, 0, due.astype(np.int64), phase, seed)

    def evenly(
        self, count: int, start_ns: int, gap_ns: int, *, first_seq: int, seed: int, streams: int = 0
    ) -> ArrivalSchedule:
        """The untimed warm-up: `count` requests of the usual lengths, `gap_ns` apart, to streams in turn.

        Of conversations, what so many users said last before the beginning.
        """
        order = np.arange(count, dtype=np.int64)
        if self._talks:
            rows, due_ns = self._talks.population(seed).before(count), start_ns + gap_ns * order
            return self._said(rows, due_ns, np.zeros_like(order), -1, first_seq)
        schedule = self._schedule(-1, first_seq, start_ns + gap_ns * order, np.zeros_like(order), seed)
        return replace(schedule, stream=order % streams) if streams else schedule

    def closed(
        self, count: int, concurrency: int, start_ns: int, *, dwell: int, first_seq: int, seed: int
    ) -> ArrivalSchedule:
        """A closed loop of `count` requests; the first `concurrency` fill it and are `transition`."""
        filling = np.arange(count) < concurrency
        phase = np.where(filling, PHASES.index("transition"), PHASES.index("window"))
        due_ns = np.full(count, start_ns, dtype=np.int64)
        schedule = self._schedule(dwell, first_seq, due_ns, phase, seed)
        return replace(schedule, concurrency=concurrency)

    def _under(
        self, profile: Profile, of: int, origin_ns: int, start_ns: int, end_ns: int, rng: np.random.Generator
    ) -> tuple[Floats, Ints | None]:
        """Arrivals under one `of` so many equal parts of a profile.

        They are those at unit rate, through the inverse of the integrated rate.
        """
        before = float(profile.expected((start_ns - origin_ns) / NS))
        total = float(profile.expected((end_ns - origin_ns) / NS)) - before
        unit, lines = self._arrive(1.0, 0, total / of * NS, rng)
        return origin_ns + profile.when_s(before + unit * (of / NS)) * NS, lines

    def _arrive(
        self, rate_qps: float, start_ns: int, end_ns: float, rng: np.random.Generator
    ) -> tuple[Floats, Ints | None]:
        """Due times in [start_ns, end_ns), and the lines of the trace that they are."""
        arrivals = self._workload.arrivals
        if arrivals.kind != "trace":
            return renewal_ns(arrivals, rate_qps, start_ns, end_ns, rng), None
        assert self.trace is not None
        return scaled_ns(self.trace, rate_qps, start_ns, end_ns, rng)

    def _schedule(
        self,
        dwell: int,
        first_seq: int,
        due_ns: Ints,
        phase: Ints,
        seed: int,
        lines: Ints | None = None,
        stream: int = -1,
    ) -> ArrivalSchedule:
        """The schedule with lengths; empirical ones of both columns come from the same lines.

        Each column has a generator of its own: how the k-th length comes out does not depend on the rate.
        """
        draws = [_generator(seed, dwell, column, stream) for column in (1, 2)]
        count, inputs, outputs = len(due_ns), None, None
        if self.trace is not None:
            lines = draws[0].integers(len(self.trace), size=count) if lines is None else lines
            inputs, outputs = self.trace.input_tokens[lines], self.trace.output_tokens[lines]
        input_tokens = draw_lengths(self._workload.input_tokens, count, draws[0], inputs)
        image_tokens = draw_images(self._workload.images, count, _generator(seed, dwell, 9, stream))
        if image_tokens is not None:
            input_tokens = input_tokens + image_tokens
        session = self._sessions(count, _generator(seed, dwell, 3, stream))
        return ArrivalSchedule(
            dwell=dwell,
            seq=np.arange(first_seq, first_seq + count, dtype=np.int64),
            due_ns=due_ns,
            phase=phase,
            input_tokens=input_tokens,
            output_tokens=draw_lengths(self._workload.output_tokens, count, draws[1], outputs),
            shared_tokens=shared_with_all(input_tokens, self._workload.prefix_hit),
            stream=None if stream < 0 else np.full(count, stream, dtype=np.int64),
            session=session,
            turn=None if session is None else turns(session),
            image_tokens=image_tokens,
        )

    def _sessions(self, count: int, rng: np.random.Generator) -> Ints | None:
        """The session of each request: the same users in every segment, whoever is drawn in this one."""
        users = self._workload.sessions
        return rng.integers(users, size=count) if users else None


def _phases(due_ns: Ints, bounds_ns: dict[str, tuple[int, int]]) -> Ints:
    """The phase that each due time falls into."""
    phase = np.zeros(len(due_ns), dtype=np.int64)
    for name, (start, end) in bounds_ns.items():
        phase[(due_ns >= start) & (due_ns < end)] = PHASES.index(name)
    return phase


def _generator(seed: int, dwell: int, column: int, stream: int) -> np.random.Generator:
    """The randomness of one column (0: arrivals) of one segment and stream (-1: the pooled one)."""
    return np.random.default_rng([seed, dwell + 1, column, stream + 1])


def _interleaved(streams: Sequence[ArrivalSchedule], first_seq: int) -> ArrivalSchedule:
    """Streams as one schedule in order of due time."""
    columns = ["due_ns", "phase", "input_tokens", "output_tokens", "shared_tokens", "stream"]
    if streams[0].image_tokens is not None:
        columns.append("image_tokens")
    joined = {name: np.concatenate([getattr(stream, name) for stream in streams]) for name in columns}
    order = np.argsort(joined["due_ns"], kind="stable")
    arrays: dict[str, Any] = {name: column[order] for name, column in joined.items()}
    return replace(streams[0], seq=np.arange(first_seq, first_seq + len(order), dtype=np.int64), **arrays)
