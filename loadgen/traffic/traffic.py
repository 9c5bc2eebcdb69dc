"""Draws the requests of one workload: open loop, trace, closed loop, conversations and warm-up.

Arrival processes are in `processes`, lengths in `lengths`.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from conf.specs.experiment import Workload
from loadgen.traffic import trace
from loadgen.traffic.lengths import Ints, draw_images, draw_lengths, longest_tokens, shared_with_all, turns
from loadgen.traffic.population import ConversationTraffic
from loadgen.traffic.prefix_sharing import begins, reusable_tokens
from loadgen.traffic.processes import OpenArrivals, Profile
from loadgen.traffic.schedule import PHASES, ArrivalSchedule, Bounds, interleaved, phases_of

PIECE_SEEDS = 1_000_003
"""Seeds of a window's pieces lie so far apart, beyond those of other runs and repeats."""
ARRIVALS, INPUTS, OUTPUTS, SESSIONS, IMAGES = 0, 1, 2, 3, 9
"""Random columns: each has its own generator, so that the k-th length does not depend on the rate.

Changing a number changes the requests of every seed."""


def generator(seed: int, window_index: int, column: int, stream: int) -> np.random.Generator:
    """The randomness of one column of one window and stream (-1: the pooled one)."""
    return np.random.default_rng([seed, window_index + 1, column, stream + 1])


class Traffic:
    """Draws the requests of one workload; its `trace`, if it has one, is read once.

    The same seed and window give the same unit-rate arrivals and lengths at every rate, whatever ran before.
    Raises ConfigError for a trace that cannot be used.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.trace = trace.workload_trace(workload)
        self._arrivals = OpenArrivals(workload.arrivals, self.trace)
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
        window_index: int,
        first_seq: int,
        seed: int,
        streams: int = 0,
        piece: int = 0,
    ) -> ArrivalSchedule:
        """One window of the run: arrivals at `rate_qps` over adjoining phases `{name: (start, end)}`.

        A profile counts from the start of the phase `window`. A trace gives its own arrivals, scaled in time,
        each with the lengths of its line if those are empirical. `streams` above 0 draws that many
        independent processes with equal parts of the rate, one for each node. `piece` numbers the parts of a
        window that is drawn in several.
        """
        if self._conversations:
            assert not isinstance(rate_qps, Profile) and not streams, "refused by the experiment"
            return self._conversations.draw(
                rate_qps, bounds_ns, window_index=window_index, first_seq=first_seq, seed=seed
            )
        seed += PIECE_SEEDS * piece

        def one(stream: int, parts: int) -> ArrivalSchedule:
            rng = generator(seed, window_index, ARRIVALS, stream)
            due_ns, lines = self._arrivals.within(rate_qps, parts, bounds_ns, rng)
            phase = phases_of(due_ns, bounds_ns)
            return self._schedule(
                due_ns, phase, lines, stream, window_index=window_index, first_seq=first_seq, seed=seed
            )

        if streams:
            return self._begun(interleaved([one(s, streams) for s in range(streams)], first_seq))
        return self._begun(one(-1, 1))

    def replay(
        self, start_ns: int, duration_ns: int | None, *, window_index: int, first_seq: int, seed: int
    ) -> ArrivalSchedule:
        """The trace at its own times, whole or its first `duration_ns`, as phase `window`, in one stream."""
        assert self.trace is not None, "a workload without a trace has nothing to replay"
        due_ns = self.trace.due_ns
        if duration_ns is not None:
            due_ns = due_ns[due_ns < duration_ns]
        phase, lines = np.full(len(due_ns), PHASES.index("window"), dtype=np.int64), np.arange(len(due_ns))
        replayed = start_ns + due_ns
        return self._begun(
            self._schedule(replayed, phase, lines, window_index=window_index, first_seq=first_seq, seed=seed)
        )

    def _begun(self, schedule: ArrivalSchedule) -> ArrivalSchedule:
        """The schedule with what its prompts share, where a trace says it."""
        trace = self.trace
        if trace is None or not trace.blocks or schedule.line is None or not self._workload.replays_prefixes:
            return schedule
        blocks = trace.blocks, trace.block_tokens
        runs = begins(*blocks, schedule.line, schedule.input_tokens, schedule.seq, schedule.stream)
        return replace(schedule, begins=runs, reusable_tokens=reusable_tokens(runs))

    def first(self, count: int, rate_qps: float, *, window_index: int, seed: int) -> ArrivalSchedule:
        """The first `count` requests of a window that begins at 0, as phase `window`."""
        due_ns = self._arrivals.first(count, rate_qps, seed, generator(seed, window_index, ARRIVALS, -1))
        phase = np.full(count, PHASES.index("window"), dtype=np.int64)
        return self._schedule(due_ns, phase, window_index=window_index, first_seq=0, seed=seed)

    def evenly(
        self, count: int, start_ns: int, gap_ns: int, *, first_seq: int, seed: int, streams: int = 0
    ) -> ArrivalSchedule:
        """The untimed warm-up: `count` requests of the usual lengths, `gap_ns` apart, to streams in turn."""
        order = np.arange(count, dtype=np.int64)
        due_ns = start_ns + gap_ns * order
        if self._conversations:
            return self._conversations.warm_up(due_ns, first_seq=first_seq, seed=seed)
        phase = np.zeros_like(order)
        schedule = self._schedule(due_ns, phase, window_index=-1, first_seq=first_seq, seed=seed)
        return replace(schedule, stream=order % streams) if streams else schedule

    def closed(
        self, count: int, concurrency: int, start_ns: int, *, window_index: int, first_seq: int, seed: int
    ) -> ArrivalSchedule:
        """A closed loop of `count` requests; the first `concurrency` fill it, as phase `transition`."""
        filling = np.arange(count) < concurrency
        phase = np.where(filling, PHASES.index("transition"), PHASES.index("window"))
        due_ns = np.full(count, start_ns, dtype=np.int64)
        schedule = self._schedule(due_ns, phase, window_index=window_index, first_seq=first_seq, seed=seed)
        return replace(schedule, concurrency=concurrency)

    def _schedule(
        self,
        due_ns: Ints,
        phase: Ints,
        lines: Ints | None = None,
        stream: int = -1,
        *,
        window_index: int,
        first_seq: int,
        seed: int,
    ) -> ArrivalSchedule:
        """The schedule of requests due at these times; empirical lengths come from the trace's `lines`."""

        def random(column: int) -> np.random.Generator:
            return generator(seed, window_index, column, stream)

        workload, count = self._workload, len(due_ns)
        input_rng = random(INPUTS)
        recorded: tuple[Ints | None, Ints | None] = None, None
        in_order = lines
        if self.trace is not None:
            lines = input_rng.integers(len(self.trace), size=count) if lines is None else lines
            recorded = self.trace.input_tokens[lines], self.trace.output_tokens[lines]
        input_tokens = draw_lengths(workload.input_tokens, count, input_rng, recorded[0])
        image_tokens = draw_images(workload.images, count, random(IMAGES))
        if image_tokens is not None:
            input_tokens = input_tokens + image_tokens
        optional: dict[str, Any] = {"image_tokens": image_tokens, "line": in_order}
        if stream >= 0:
            optional["stream"] = np.full(count, stream, dtype=np.int64)
        if workload.sessions:  # the same users in every window
            session = random(SESSIONS).integers(workload.sessions, size=count)
            optional |= {"session": session, "turn": turns(session)}
        return ArrivalSchedule(
            window_index=window_index,
            seq=np.arange(first_seq, first_seq + count, dtype=np.int64),
            due_ns=due_ns,
            phase=phase,
            input_tokens=input_tokens,
            output_tokens=draw_lengths(workload.output_tokens, count, random(OUTPUTS), recorded[1]),
            shared_tokens=shared_with_all(input_tokens, workload.prefix_hit),
            **optional,
        )
