"""The population of chat sessions, and schedules of their turns: stationary, with the same users at any rate.

`sessions` knows the turns of one session. Sessions begin as a Poisson process over time and rate: each has
a mark, and at r messages per second the sessions with a mark below r exist. A higher rate therefore keeps
all users of a lower one and adds more, and a change of rate leaves the users below both rates as they are.
Time 0 meets the mean number of sessions, at any rate.
"""

import math
from typing import Any

import numpy as np

from conf.specs.conversation import Conversations
from loadgen.traffic.lengths import Ints
from loadgen.traffic.processes import Floats
from loadgen.traffic.schedule import NS, ArrivalSchedule, Bounds, phases_of, span_ns
from loadgen.traffic.sessions import SESSION, TURN, Rows, SessionProcess

BANDS = 31
"""Marks are drawn in bands with the edges 0, 1, 2, 4, 8, ..., each when a rate first reaches it."""
CHUNK_TURNS, SHORTEST_S, LONGEST_S = 16_384, 60.0, 1200.0
"""A band is played in chunks that hold about this many turns, within these bounds of time."""
KEPT_S = 600.0
"""Chunks further back than this from the last request for turns are dropped, and played again if needed."""


class SessionPopulation:
    """All sessions of a seed, played as far as requested. Time begins at 0, in the stationary state."""

    def __init__(self, spec: Conversations, seed: int) -> None:
        self._talk, self._seed = SessionProcess(spec, seed), seed
        self._bands: dict[int, _Band] = {}

    @property
    def gap_s(self) -> float:
        """Mean time from one turn of a session to the next."""
        return self._talk.gap_s

    def turns(self, rate_qps: float, start_s: float, end_s: float) -> Rows:
        """The turns (`sessions.TURN`) of all sessions at a rate that are due in [start, end), by due time."""
        parts = [np.empty(0, dtype=TURN)]
        for number in range(BANDS):
            if _edge(number) >= rate_qps:
                break
            rows = self._band(number).turns(start_s, end_s)
            parts.append(rows[rows["mark"] < rate_qps])
        joined = np.concatenate(parts)
        return joined[np.argsort(joined["due_s"], kind="stable")]

    def before(self, count: int) -> Rows:
        """The last turns before time 0 of `count` sessions, those with the lowest marks."""
        turns, number = np.empty(0, dtype=TURN), 0
        while len(turns) < count:
            turns, number = np.concatenate([turns, self._band(number).before]), number + 1
        return turns[np.argsort(turns["mark"], kind="stable")][:count]

    def _band(self, number: int) -> "_Band":
        if number not in self._bands:
            self._bands[number] = _Band(self._talk, self._seed, number)
        return self._bands[number]


class _Band:
    """The sessions whose marks lie between two edges, one chunk of time after the other."""

    def __init__(self, talk: SessionProcess, seed: int, number: int) -> None:
        self._talk, self._seed, self._number = talk, seed, number
        self._low, self._high = _edge(number), _edge(number + 1)
        self._chunk_s = min(max(CHUNK_TURNS / self._width, SHORTEST_S), LONGEST_S)
        self._begin()

    @property
    def _width(self) -> float:
        return self._high - self._low

    def turns(self, start_s: float, end_s: float) -> Rows:
        first, last = (int(max(at_s, 0.0) // self._chunk_s) for at_s in (start_s, end_s))
        if first < min(self._chunks, default=self._next):
            self._begin()
        while self._next <= last:
            self._play()
            for old in [each for each in self._chunks if (each + 1) * self._chunk_s < start_s - KEPT_S]:
                del self._chunks[old]
        rows = np.concatenate([self._chunks[each] for each in range(first, last + 1)])
        return rows[(rows["due_s"] >= start_s) & (rows["due_s"] < end_s)]

    def _begin(self) -> None:
        marks = self._marks()
        count = len(marks)
        self.before, self._alive = self._talk.in_the_middle(count, self._generator(0))
        for rows in (self.before, self._alive):
            rows["mark"], rows["session"] = marks, self._numbers(0, count)
        self._sessions, self._next = count, 0
        self._chunks: dict[int, Rows] = {}

    def _marks(self) -> Floats:
        """Marks of the sessions that time 0 meets: evenly spaced over all bands, from a random first one.

        A Poisson number's surplus of users would stay for longer than a run, and another rate be measured.
        """
        per_qps = (1 - 1 / self._talk.spec.turns) * self._talk.gap_s
        first = float(np.random.default_rng([self._seed, 8]).random())
        begin, end = (math.ceil(edge * per_qps - first) for edge in (self._low, self._high))
        return (first + np.arange(begin, end, dtype=np.float64)) / per_qps

    def _play(self) -> None:
        """Play the next chunk: every session that begins in it, and every turn until its end."""
        rng, start_s = self._generator(self._next + 1), self._next * self._chunk_s
        end_s = start_s + self._chunk_s
        talking = np.concatenate([self._alive, self._newcomers(start_s, rng)])
        later, played = [np.empty(0, dtype=SESSION)], [np.empty(0, dtype=TURN)]
        while len(talking):
            now = talking["due_s"] < end_s
            later.append(talking[~now])
            turns, talking = self._talk.speak(talking[now], rng)
            played.append(turns)
        self._alive, self._chunks[self._next] = np.concatenate(later), np.concatenate(played)
        self._next += 1

    def _newcomers(self, start_s: float, rng: np.random.Generator) -> Rows:
        """Sessions that begin in a chunk: a Poisson number, uniform in time and mark."""
        count = int(rng.poisson(self._width * self._chunk_s / self._talk.spec.turns))
        rows = self._talk.begun(count, rng)
        rows["mark"] = rng.uniform(self._low, self._high, count)
        rows["due_s"] = start_s + self._chunk_s * rng.random(count)
        rows["session"] = self._numbers(self._sessions, count)
        self._sessions += count
        return rows

    def _numbers(self, first: int, count: int) -> Ints:
        return np.arange(first, first + count, dtype=np.int64) * BANDS + self._number

    def _generator(self, place: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, self._number, place, 7])


def _edge(number: int) -> float:
    return 0.0 if number == 0 else 2.0 ** (number - 1)


COLUMNS = "input_tokens output_tokens session turn character character_tokens persona_tokens history_cut"


class ConversationTraffic:
    """Draws the turns of one population, which lives through all windows of a run.

    A stretch of time depends on seed, rate and time alone, not on the window that asks for it.
    """

    def __init__(self, spec: Conversations) -> None:
        self._spec = spec
        self._known: tuple[int, SessionPopulation] | None = None
        self._planned = np.empty((0, 3), dtype=np.int64)

    def draw(
        self, rate_qps: float, bounds_ns: Bounds, *, window_index: int, first_seq: int, seed: int
    ) -> ArrivalSchedule:
        """The turns of all sessions that are due within the phases."""
        start_ns, end_ns = span_ns(bounds_ns)
        rows = self._population(seed).turns(rate_qps, start_ns / NS, end_ns / NS)
        due_ns = (rows["due_s"] * NS).astype(np.int64).clip(start_ns, end_ns - 1)
        return self._schedule(rows, due_ns, phases_of(due_ns, bounds_ns), window_index, first_seq)

    def warm_up(self, due_ns: Ints, *, first_seq: int, seed: int) -> ArrivalSchedule:
        """The last turns before time 0 of as many sessions, sent at `due_ns` as the untimed warm-up."""
        rows = self._population(seed).before(len(due_ns))
        return self._schedule(rows, due_ns, np.zeros_like(due_ns), -1, first_seq)

    def _population(self, seed: int) -> SessionPopulation:
        if self._known is None or self._known[0] != seed:
            self._known = seed, SessionPopulation(self._spec, seed)
            self._planned = np.empty((0, 3), dtype=np.int64)
        return self._known[1]

    def _schedule(
        self, rows: Rows, due_ns: Ints, phase: Ints, window_index: int, first_seq: int
    ) -> ArrivalSchedule:
        seq = np.arange(first_seq, first_seq + len(rows), dtype=np.int64)
        columns: dict[str, Any] = {name: rows[name].astype(np.int64) for name in COLUMNS.split()}
        shared = np.full(len(rows), self._spec.system_tokens, dtype=np.int64)
        after = self._after(columns["session"], columns["turn"], seq)
        return ArrivalSchedule(
            window_index=window_index,
            seq=seq,
            due_ns=due_ns,
            phase=phase,
            shared_tokens=shared,
            after=after,
            **columns,
        )

    def _after(self, sessions: Ints, turns: Ints, seqs: Ints) -> Ints:
        """The seq under which each session's previous turn was planned; -1 if none is known.

        If a time is planned again, as after a window that was cut short, only its new turns are known.
        """
        rows = np.concatenate([self._planned, np.stack([sessions, turns, seqs], axis=1)])
        order = np.argsort(rows[:, 0], kind="stable")
        ours, last = rows[order], np.ones(len(rows), dtype=np.bool_)
        last[:-1] = ours[1:, 0] != ours[:-1, 0]
        follows = np.flatnonzero(~last) + 1
        follows = follows[ours[follows, 1] > ours[follows - 1, 1]]
        before = np.full(len(rows), -1, dtype=np.int64)
        before[order[follows]] = ours[follows - 1, 2]
        self._planned = ours[last]
        return before[len(before) - len(sessions) :]
