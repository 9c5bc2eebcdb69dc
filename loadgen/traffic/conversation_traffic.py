"""Schedules of conversations: the turns of a session population that are due in a stretch of time.

Knows which turn of a session was planned before; the population itself is in `population`.
"""

from typing import Any

import numpy as np

from conf.specs.conversation import Conversations
from loadgen.traffic.lengths import Ints
from loadgen.traffic.population import SessionPopulation
from loadgen.traffic.schedule import NS, ArrivalSchedule, Bounds, phases_of, span_ns
from loadgen.traffic.sessions import Rows

COLUMNS = (
    "input_tokens",
    "output_tokens",
    "session",
    "turn",
    "character",
    "character_tokens",
    "persona_tokens",
    "history_cut",
)


class ConversationTraffic:
    """Draws the turns of one population, which lives through all segments of a run.

    A stretch of time depends on seed, rate and time alone, not on the segment that asks for it.
    """

    def __init__(self, spec: Conversations) -> None:
        self._spec = spec
        self._known: tuple[int, SessionPopulation] | None = None
        self._planned = np.empty((0, 3), dtype=np.int64)

    def draw(
        self, rate_qps: float, bounds_ns: Bounds, *, dwell: int, first_seq: int, seed: int
    ) -> ArrivalSchedule:
        """The turns of all sessions that are due within the phases."""
        start_ns, end_ns = span_ns(bounds_ns)
        rows = self._population(seed).turns(rate_qps, start_ns / NS, end_ns / NS)
        due_ns = (rows["due_s"] * NS).astype(np.int64).clip(start_ns, end_ns - 1)
        return self._schedule(rows, due_ns, phases_of(due_ns, bounds_ns), dwell, first_seq)

    def warm_up(self, due_ns: Ints, *, first_seq: int, seed: int) -> ArrivalSchedule:
        """The last turns before time 0 of as many sessions, sent at `due_ns` as the untimed warm-up."""
        rows = self._population(seed).before(len(due_ns))
        return self._schedule(rows, due_ns, np.zeros_like(due_ns), -1, first_seq)

    def _population(self, seed: int) -> SessionPopulation:
        if self._known is None or self._known[0] != seed:
            self._known = seed, SessionPopulation(self._spec, seed)
            self._planned = np.empty((0, 3), dtype=np.int64)
        return self._known[1]

    def _schedule(self, rows: Rows, due_ns: Ints, phase: Ints, dwell: int, first_seq: int) -> ArrivalSchedule:
        seq = np.arange(first_seq, first_seq + len(rows), dtype=np.int64)
        columns: dict[str, Any] = {name: rows[name].astype(np.int64) for name in COLUMNS}
        shared = np.full(len(rows), self._spec.system_tokens, dtype=np.int64)
        after = self._after(columns["session"], columns["turn"], seq)
        return ArrivalSchedule(
            dwell=dwell, seq=seq, due_ns=due_ns, phase=phase, shared_tokens=shared, after=after, **columns
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
