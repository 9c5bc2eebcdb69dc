"""The population of chat sessions: an open loop, stationary at any rate, with the same users at every rate.

Knows times, rates and marks; `sessions` knows the turns of one session. Sessions begin as a Poisson process
over time and rate: each has a mark, and at r messages per second the sessions with a mark below r exist. A
higher rate therefore keeps all users of a lower one and adds more, and a change of rate leaves the users
below both rates as they are. Time 0 meets the mean number of sessions, at any rate.
"""

import math

import numpy as np

from conf.specs.conversation import Conversations
from loadgen.traffic.lengths import Ints
from loadgen.traffic.processes import Floats
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
        found = [np.empty(0, dtype=TURN)]
        for number in range(BANDS):
            if _edge(number) >= rate_qps:
                break
            rows = self._band(number).turns(start_s, end_s)
            found.append(rows[rows["mark"] < rate_qps])
        joined = np.concatenate(found)
        return joined[np.argsort(joined["due_s"], kind="stable")]

    def before(self, count: int) -> Rows:
        """The last turns before time 0 of `count` sessions, those with the lowest marks."""
        found, number = np.empty(0, dtype=TURN), 0
        while len(found) < count:
            found, number = np.concatenate([found, self._band(number).before]), number + 1
        return found[np.argsort(found["mark"], kind="stable")][:count]

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

        A Poisson number would be right for one instant of one service. But a surplus of users stays for a
        session's life, longer than a run, so a whole run would measure another rate.
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
