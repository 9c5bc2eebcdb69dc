"""Draws the requests of one workload: open loop, trace, closed loop, conversations and warm-up.

The number of arrivals is random: it is never rescaled to rate x time.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.specs.experiment import Arrivals, Workload
from loadgen.traffic import trace
from loadgen.traffic.population import SessionPopulation
from loadgen.traffic.prefix_sharing import begins, reusable_tokens
from loadgen.traffic.schedule import (
    NS,
    PHASES,
    ArrivalSchedule,
    Bounds,
    Floats,
    Ints,
    draw_images,
    draw_lengths,
    interleaved,
    longest_tokens,
    phases_of,
    shared_with_all,
    span_ns,
    turns,
)
from loadgen.traffic.trace import Trace


class Profile:
    """The rate of the whole service: linear between its points, constant before and after them.

    Offsets do not fall; two within a nanosecond are a jump. At least one rate is above zero.
    """

    def __init__(self, offset_s: Sequence[float], qps: Sequence[float]) -> None:
        at, rate = np.array(offset_s, dtype=np.float64), np.array(qps, dtype=np.float64)
        width, rise = np.diff(at), np.diff(rate)
        slope = np.divide(rise, width, out=np.zeros_like(rise), where=width > 1 / NS)
        area = np.concatenate([[0.0], np.cumsum(width * (rate[:-1] + rate[1:]) / 2)])
        # Pieces: before the first point, from each point to the next, after the last. Of each: its
        # anchor, what is expected by then, the rate there.
        self._from_s, self._expected = np.concatenate([at[:1], at]), np.concatenate([[0.0], area])
        self._rate = np.concatenate([rate[:1], rate])
        self._slope = np.concatenate([[0.0], slope, [0.0]])

    def expected(self, at_s: Floats | float) -> Floats:
        """Requests expected between the first point and `at_s`; negative before it."""
        piece = np.searchsorted(self._from_s[1:], at_s, side="right")
        after_s = at_s - self._from_s[piece]
        grown = self._expected[piece] + after_s * (self._rate[piece] + self._slope[piece] * after_s / 2)
        return np.asarray(grown, dtype=np.float64)

    def when_s(self, expected: Floats) -> Floats:
        """The inverse of `expected`: when so many requests are expected, the latest time in a pause.

        It solves rate x + slope x^2 / 2 = rest in the form without cancellation.
        """
        piece = np.searchsorted(self._expected[1:], expected, side="right")
        rest, rate, slope = expected - self._expected[piece], self._rate[piece], self._slope[piece]
        below = rate + np.sqrt(np.maximum(0.0, rate**2 + 2 * slope * rest))
        after_s = np.divide(2 * rest, below, out=np.zeros_like(rest), where=below > 0)
        return np.asarray(self._from_s[piece] + after_s, dtype=np.float64)

    @property
    def first_qps(self) -> float:
        """The rate before the first point."""
        return float(self._rate[0])

    def mean_qps(self, duration_s: float) -> float:
        """The mean rate from the first point on."""
        return float(self.expected(self._from_s[0] + duration_s)) / duration_s


def _first_gap(arrivals: Arrivals, rng: np.random.Generator) -> float:
    """The rest of the gap of mean 1 into which the start falls, so that the rate holds from the start.

    It is a uniform part of a gap that is chosen in proportion to its length (Cox, Renewal Theory, 1962,
    section 5.2); for an exponential gap it is distributed like a new one.
    """
    match arrivals.kind:
        case "gamma":
            return rng.random() * rng.standard_gamma(arrivals.burstiness + 1) / arrivals.burstiness
        case "constant":
            return rng.random()
    return rng.standard_exponential()


def _gaps(arrivals: Arrivals, count: int, rng: np.random.Generator) -> Floats:
    match arrivals.kind:
        case "gamma":
            return rng.standard_gamma(arrivals.burstiness, size=count) / arrivals.burstiness
        case "constant":
            return np.ones(count)
    return rng.standard_exponential(size=count)


def bench_arrivals_s(
    requests: int, rate_qps: float, seed: int = 0, burstiness: float = 1.0
) -> NDArray[np.float64]:
    """Due times of `requests` requests in seconds from the start of the load, as `vllm bench serve` has them.

    Gaps are gamma distributed with the shape `burstiness`; all times are scaled so that the last is due at
    requests / rate_qps, as in vLLM 0.32.0 without a ramp (`get_request`). numpy's legacy generator, which
    that tool seeds, takes 32 bits.
    """
    gaps_s = np.random.RandomState(seed).gamma(burstiness, 1 / (rate_qps * burstiness), size=requests)
    due_s = np.cumsum(gaps_s)
    if due_s[-1] == 0:  # so bursty that every gap is zero in floating point: that tool scales nothing either
        return due_s
    return np.asarray(due_s * (requests / rate_qps / due_s[-1]), dtype=np.float64)


class OpenArrivals:
    """The arrival process of one workload; `recorded` are the arrivals of kind `trace`."""

    def __init__(self, arrivals: Arrivals, recorded: Trace | None) -> None:
        self._arrivals, self._recorded = arrivals, recorded

    def within(
        self, rate_qps: float | Profile, parts: int, bounds_ns: Bounds, rng: np.random.Generator
    ) -> tuple[Ints, Ints | None]:
        """Due times within the phases under one of `parts` equal parts of the rate, and their trace lines."""
        start_ns, end_ns = span_ns(bounds_ns)
        if isinstance(rate_qps, Profile):
            origin_ns = bounds_ns["window"][0]
            before, after = (float(rate_qps.expected((at - origin_ns) / NS)) for at in (start_ns, end_ns))
            unit, lines = self._at(1.0, 0, (after - before) / parts * NS, rng)
            due = origin_ns + rate_qps.when_s(before + unit * (parts / NS)) * NS
        else:
            due, lines = self._at(rate_qps / parts, start_ns, end_ns, rng)
        return np.maximum.accumulate(due.astype(np.int64).clip(start_ns, end_ns - 1)), lines

    def first(self, count: int, rate_qps: float, seed: int, rng: np.random.Generator) -> Ints:
        """Due times from 0 of the first `count` requests; `vllm_bench` draws them from `seed`."""
        if self._arrivals.kind == "vllm_bench":
            due = bench_arrivals_s(count, rate_qps, seed, self._arrivals.burstiness) * NS
        else:
            due = self._first_ns(rate_qps, count, rng)
        return due.astype(np.int64)

    def _at(
        self, rate_qps: float, start_ns: int, end_ns: float, rng: np.random.Generator
    ) -> tuple[Floats, Ints | None]:
        if self._arrivals.kind == "trace":
            return self._scaled_ns(rate_qps, start_ns, end_ns, rng)
        # A stationary renewal process with independent gaps.
        expected = rate_qps * (end_ns - start_ns) / NS
        size = int(expected + 6 * math.sqrt(expected) + 16)
        due = start_ns + self._first_ns(rate_qps, size, rng)
        while due[-1] < end_ns:
            gaps = _gaps(self._arrivals, size, rng)
            due = np.concatenate([due, due[-1] + np.cumsum(NS / rate_qps * gaps)])
        return due[due < end_ns], None

    def _first_ns(self, rate_qps: float, count: int, rng: np.random.Generator) -> Floats:
        gaps = np.append(_first_gap(self._arrivals, rng), _gaps(self._arrivals, count - 1, rng))
        return np.asarray(np.cumsum(NS / rate_qps * gaps), dtype=np.float64)

    def _scaled_ns(
        self, rate_qps: float, start_ns: int, end_ns: float, rng: np.random.Generator
    ) -> tuple[Floats, Ints]:
        """Due times of the trace scaled to a mean of `rate_qps`, and their line numbers.

        It starts at a random time of the trace and begins again at its end, one mean gap after the last
        request: over all starts the expected count is rate x time.
        """
        assert self._recorded is not None
        count = len(self._recorded)
        at = self._recorded.due_ns * (self._recorded.mean_qps / NS)
        begin = rng.random() * count
        rounds, rest = divmod(begin + rate_qps * (end_ns - start_ns) / NS, count)
        last = int(rounds) * count + int(np.searchsorted(at, rest))
        rounds_done, lines = np.divmod(np.arange(np.searchsorted(at, begin), last), count)
        return start_ns + (at[lines] + rounds_done * count - begin) * (NS / rate_qps), lines


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
        self._people: dict[int, SessionPopulation] = {}

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
        if people := self._population(seed):
            assert not isinstance(rate_qps, Profile) and not streams, "refused by the experiment"
            return people.draw(rate_qps, bounds_ns, window_index=window_index, first_seq=first_seq)
        seed += PIECE_SEEDS * piece

        def drawn(stream: int, parts: int) -> ArrivalSchedule:
            rng = generator(seed, window_index, ARRIVALS, stream)
            due_ns, lines = self._arrivals.within(rate_qps, parts, bounds_ns, rng)
            phase = phases_of(due_ns, bounds_ns)
            return self._schedule(
                due_ns, phase, lines, stream, window_index=window_index, first_seq=first_seq, seed=seed
            )

        if streams:
            return self._begun(interleaved([drawn(s, streams) for s in range(streams)], first_seq))
        return self._begun(drawn(-1, 1))

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

    def _population(self, seed: int) -> SessionPopulation | None:
        """The users of a seed, kept through all windows; None without conversations."""
        if self._workload.conversations and seed not in self._people:
            self._people = {seed: SessionPopulation(self._workload.conversations, seed)}
        return self._people.get(seed)

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
        if people := self._population(seed):
            return people.warm_up(due_ns, first_seq)
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
