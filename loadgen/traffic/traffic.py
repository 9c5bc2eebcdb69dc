"""Draws the requests of one workload: open loop, trace, closed loop, conversations and warm-up.

Knows which part draws what; arrival processes are in `processes`, lengths in `lengths`.
"""

from dataclasses import replace

import numpy as np

from conf.specs.experiment import Workload
from loadgen.traffic import trace
from loadgen.traffic.conversation_traffic import ConversationTraffic
from loadgen.traffic.lengths import longest_tokens
from loadgen.traffic.open_arrivals import OpenArrivals
from loadgen.traffic.processes import Profile
from loadgen.traffic.request_columns import ARRIVALS, RequestColumns, generator
from loadgen.traffic.schedule import PHASES, ArrivalSchedule, Bounds, interleaved, phases_of

PIECE_SEEDS = 1_000_003
"""Seeds of a segment's pieces lie so far apart, beyond those of other runs and repeats."""


class Traffic:
    """Draws the requests of one workload; its `trace`, if it has one, is read once.

    The same seed and dwell give the same unit-rate arrivals and lengths at every rate, whatever ran before.
    Conversations depend on seed, rate and time alone. Raises ConfigError for a trace that cannot be used.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.trace = trace.of(workload)
        self._arrivals = OpenArrivals(workload.arrivals, self.trace)
        self._columns = RequestColumns(workload, self.trace)
        self._conversations = ConversationTraffic(workload.conversations) if workload.conversations else None

    @property
    def longest_request_tokens(self) -> int:
        """Prompt and answer tokens of the longest request to expect; for a trace, of its longest line."""
        columns = self._workload.input_tokens, self._workload.output_tokens
        if spec := self._workload.conversations:
            return spec.max_prompt_tokens + longest_tokens(spec.answer_tokens)
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
        bounds_ns: Bounds,
        *,
        dwell: int,
        first_seq: int,
        seed: int,
        streams: int = 0,
        piece: int = 0,
    ) -> ArrivalSchedule:
        """One segment of the run: arrivals at `rate_qps` over adjoining phases `{name: (start, end)}`.

        A profile counts from the start of the phase `window`. A trace gives its own arrivals, scaled in time,
        each with the lengths of its line if those are empirical. `streams` above 0 draws that many
        independent processes with equal parts of the rate, one for each node. `piece` numbers the parts of a
        segment that is drawn in several.
        """
        if self._conversations:
            assert not isinstance(rate_qps, Profile) and not streams, "refused by the experiment"
            return self._conversations.draw(rate_qps, bounds_ns, dwell=dwell, first_seq=first_seq, seed=seed)
        seed += PIECE_SEEDS * piece

        def one(stream: int, parts: int) -> ArrivalSchedule:
            rng = generator(seed, dwell, ARRIVALS, stream)
            due_ns, lines = self._arrivals.within(rate_qps, parts, bounds_ns, rng)
            phase = phases_of(due_ns, bounds_ns)
            return self._columns.schedule(
                due_ns, phase, lines, stream, dwell=dwell, first_seq=first_seq, seed=seed
            )

        return interleaved([one(s, streams) for s in range(streams)], first_seq) if streams else one(-1, 1)

    def replay(
        self, start_ns: int, duration_ns: int | None, *, dwell: int, first_seq: int, seed: int
    ) -> ArrivalSchedule:
        """The trace at its own times, whole or its first `duration_ns`, as phase `window`.

        It is one stream whatever the routing: several addresses get its requests at random.
        """
        assert self.trace is not None, "a workload without a trace has nothing to replay"
        due_ns = self.trace.due_ns
        if duration_ns is not None:
            due_ns = due_ns[due_ns < duration_ns]
        phase, lines = np.full(len(due_ns), PHASES.index("window"), dtype=np.int64), np.arange(len(due_ns))
        return self._columns.schedule(
            start_ns + due_ns, phase, lines, dwell=dwell, first_seq=first_seq, seed=seed
        )

    def first(self, count: int, rate_qps: float, *, dwell: int, seed: int) -> ArrivalSchedule:
        """The first `count` requests of a segment that begins at 0, as phase `window`."""
        due_ns = self._arrivals.first(count, rate_qps, seed, generator(seed, dwell, ARRIVALS, -1))
        phase = np.full(count, PHASES.index("window"), dtype=np.int64)
        return self._columns.schedule(due_ns, phase, dwell=dwell, first_seq=0, seed=seed)

    def evenly(
        self, count: int, start_ns: int, gap_ns: int, *, first_seq: int, seed: int, streams: int = 0
    ) -> ArrivalSchedule:
        """The untimed warm-up: `count` requests of the usual lengths, `gap_ns` apart, to streams in turn."""
        order = np.arange(count, dtype=np.int64)
        due_ns = start_ns + gap_ns * order
        if self._conversations:
            return self._conversations.warm_up(due_ns, first_seq=first_seq, seed=seed)
        phase = np.zeros_like(order)
        schedule = self._columns.schedule(due_ns, phase, dwell=-1, first_seq=first_seq, seed=seed)
        return replace(schedule, stream=order % streams) if streams else schedule

    def closed(
        self, count: int, concurrency: int, start_ns: int, *, dwell: int, first_seq: int, seed: int
    ) -> ArrivalSchedule:
        """A closed loop of `count` requests; the first `concurrency` fill it, as phase `transition`."""
        filling = np.arange(count) < concurrency
        phase = np.where(filling, PHASES.index("transition"), PHASES.index("window"))
        due_ns = np.full(count, start_ns, dtype=np.int64)
        schedule = self._columns.schedule(due_ns, phase, dwell=dwell, first_seq=first_seq, seed=seed)
        return replace(schedule, concurrency=concurrency)
