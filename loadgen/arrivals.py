"""The arrival schedule: every planned request as numpy arrays, drawn from a seed before the first send.

Knows due times and phases; knows nothing of who sends them. A process is taken as it comes: the count
is whatever falls before the end, never rescaled to rate x time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.schema import Arrivals, Workload
from loadgen import trace
from loadgen.lengths import Ints, draw_lengths, longest_tokens

PHASES = ("warmup", "ramp", "transition", "window", "bridge", "retracted")
NS = 1_000_000_000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ArrivalSchedule:
    """Planned requests in order of due time; all arrays have one length.

    `seq` is the position in the run's master schedule, `due_ns` counts from the start of the run's
    clock, `phase` indexes `PHASES`, `dwell` is the segment (-1: warm-up). `concurrency` above 0 is a
    closed loop: that many requests are in flight, `due_ns` is only the start, and each request is due
    when one before it ends.
    """

    dwell: int
    seq: Ints
    due_ns: Ints
    phase: Ints
    input_tokens: Ints
    output_tokens: Ints
    concurrency: int = 0

    def __len__(self) -> int:
        return len(self.seq)

    def shard(self, i: int, n: int) -> "ArrivalSchedule":
        """The requests of actor `i` of `n`: those with seq mod n = i, whatever n the union is the same.

        A closed loop is shared as evenly. Raises ValueError where an actor would have no part in it:
        its requests would be an open loop, all due at once.
        """
        if 0 < self.concurrency < n:
            raise ValueError(f"{n} load actors cannot share a concurrency of {self.concurrency}")
        mine = self.seq % n == i
        return replace(self.where(mine), concurrency=int(mine[: self.concurrency].sum()))

    def where(self, mask: NDArray[np.bool_] | slice) -> "ArrivalSchedule":
        """The requests selected by a boolean mask or a slice."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        arrays: dict[str, Any] = {k: v[mask] for k, v in columns.items() if isinstance(v, np.ndarray)}
        return replace(self, **arrays)


class Profile:
    """A rate of the whole service over time: linear between its points, then held; before them, the first.

    `offset_s` does not fall; two points within a nanosecond are a jump. At least one rate is above zero.
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

    @classmethod
    def of(cls, points: Sequence[Sequence[float]], nodes: int) -> "Profile":
        """The profile of `nodes` nodes from points [seconds, QPS per node]."""
        return cls([second for second, _ in points], [qps * nodes for _, qps in points])

    def expected(self, at_s: Floats | float) -> Floats:
        """Requests expected between the first point and `at_s`; negative before it."""
        piece = np.searchsorted(self._from_s[1:], at_s, side="right")
        after_s = at_s - self._from_s[piece]
        grown = self._expected[piece] + after_s * (self._rate[piece] + self._slope[piece] * after_s / 2)
        return np.asarray(grown, dtype=np.float64)

    def when_s(self, expected: Floats) -> Floats:
        """The inverse of `expected`: when so many requests are expected; the latest time of a pause.

        Within a piece it solves rate x + slope x^2 / 2 = rest, in the form that no cancellation spoils.
        """
        piece = np.searchsorted(self._expected[1:], expected, side="right")
        rest, rate, slope = expected - self._expected[piece], self._rate[piece], self._slope[piece]
        below = rate + np.sqrt(np.maximum(0.0, rate**2 + 2 * slope * rest))
        after_s = np.divide(2 * rest, below, out=np.zeros_like(rest), where=below > 0)
        return np.asarray(self._from_s[piece] + after_s, dtype=np.float64)

    def mean_qps(self, duration_s: float) -> float:
        """The mean rate from the first point on."""
        return float(self.expected(self._from_s[0] + duration_s)) / duration_s


def renewal_ns(
    arrivals: Arrivals, rate_qps: float, start_ns: int, end_ns: float, rng: np.random.Generator
) -> Floats:
    """Due times in [start_ns, end_ns) of a stationary renewal process with independent gaps.

    The first gap is what remains of the one that `start_ns` falls into, a uniform part of a gap chosen
    by its length (Cox, Renewal Theory, 1962, section 5.2), so that the rate holds from the start.
    """
    expected = rate_qps * (end_ns - start_ns) / NS
    size = int(expected + 6 * math.sqrt(expected) + 16)
    gaps = np.append(_first_gap(arrivals, rng), _gaps(arrivals, size - 1, rng))
    due = start_ns + np.cumsum(NS / rate_qps * gaps)
    while due[-1] < end_ns:
        due = np.concatenate([due, due[-1] + np.cumsum(NS / rate_qps * _gaps(arrivals, size, rng))])
    return due[due < end_ns]


def _first_gap(arrivals: Arrivals, rng: np.random.Generator) -> float:
    """What remains of a gap of mean 1; of an exponential one as much as of a new one."""
    match arrivals.kind:
        case "gamma":
            return rng.random() * rng.standard_gamma(arrivals.burstiness + 1) / arrivals.burstiness
        case "constant":
            return rng.random()
    return rng.standard_exponential()


def _gaps(arrivals: Arrivals, count: int, rng: np.random.Generator) -> Floats:
    """Gaps of mean 1."""
    match arrivals.kind:
        case "gamma":
            return rng.standard_gamma(arrivals.burstiness, size=count) / arrivals.burstiness
        case "constant":
            return np.ones(count)
    return rng.standard_exponential(size=count)


def scaled_ns(
    recorded: trace.Trace, rate_qps: float, start_ns: int, end_ns: float, rng: np.random.Generator
) -> tuple[Floats, Ints]:
    """Due times in [start_ns, end_ns) of a trace scaled to a mean of `rate_qps`, and their lines in it.

    It starts at a random time of the trace and begins again at its end, one mean gap after the last
    request: over all starts the expected count is rate x time.
    """
    count = len(recorded)
    at = recorded.due_ns * (recorded.mean_qps / NS)
    begin = rng.random() * count
    end = begin + rate_qps * (end_ns - start_ns) / NS
    rounds, rest = divmod(end, count)
    last = int(rounds) * count + int(np.searchsorted(at, rest))
    rounds_done, lines = np.divmod(np.arange(np.searchsorted(at, begin), last), count)
    return start_ns + (at[lines] + rounds_done * count - begin) * (NS / rate_qps), lines


class Traffic:
    """Draws the requests of one workload; its `trace`, if it has one, is read once.

    The same seed and dwell give the same unit-rate arrivals and lengths at every rate, whatever ran
    before. Raises ConfigError for a trace that cannot be used.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.trace = trace.of(workload)

    @property
    def longest_request_tokens(self) -> int:
        """Prompt and answer of the longest request to expect; in a trace it is one of its lines."""
        columns = self._workload.input_tokens, self._workload.output_tokens
        if self.trace is None:
            return sum(longest_tokens(lengths) for lengths in columns)
        recorded = self.trace.input_tokens, self.trace.output_tokens
        if {lengths.kind for lengths in columns} == {"empirical"}:
            return int((recorded[0] + recorded[1]).max())
        return sum(map(longest_tokens, columns, recorded))

    def draw(
        self,
        rate_qps: float | Profile,
        bounds_ns: dict[str, tuple[int, int]],
        *,
        dwell: int,
        first_seq: int,
        seed: int,
    ) -> ArrivalSchedule:
        """One segment of the run: arrivals at `rate_qps` over adjoining phases `{name: (start, end)}`.

        A profile counts from the start of the phase `window`. A trace gives its own arrivals (`scaled_ns`),
        each with the lengths of its line where they are empirical.
        """
        rng = np.random.default_rng([seed, dwell + 1])
        start_ns = min(start for start, _ in bounds_ns.values())
        end_ns = max(end for _, end in bounds_ns.values())
        if isinstance(rate_qps, Profile):
            due, lines = self._under(rate_qps, bounds_ns["window"][0], start_ns, end_ns, rng)
        else:
            due, lines = self._arrive(rate_qps, start_ns, end_ns, rng)
        due_ns = np.maximum.accumulate(due.astype(np.int64).clip(start_ns, end_ns - 1))
        phase = np.zeros(len(due_ns), dtype=np.int64)
        for name, (start, end) in bounds_ns.items():
            phase[(due_ns >= start) & (due_ns < end)] = PHASES.index(name)
        return self._schedule(dwell, first_seq, due_ns, phase, seed, lines)

    def replay(
        self, start_ns: int, duration_ns: int | None, *, dwell: int, first_seq: int, seed: int
    ) -> ArrivalSchedule:
        """The trace in its own time from its beginning, all of it or its first `duration_ns`, as `window`."""
        assert self.trace is not None, "a workload without a trace has nothing to replay"
        due_ns = self.trace.due_ns
        if duration_ns is not None:
            due_ns = due_ns[due_ns < duration_ns]
        phase = np.full(len(due_ns), PHASES.index("window"), dtype=np.int64)
        lines = np.arange(len(due_ns))
        return self._schedule(dwell, first_seq, start_ns + due_ns, phase, seed, lines)

    def evenly(self, count: int, start_ns: int, gap_ns: int, *, first_seq: int, seed: int) -> ArrivalSchedule:
        """The untimed warm-up: `count` requests of the workload's lengths, `gap_ns` apart."""
        due_ns = start_ns + gap_ns * np.arange(count, dtype=np.int64)
        return self._schedule(-1, first_seq, due_ns, np.zeros(count, dtype=np.int64), seed)

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
        self, profile: Profile, origin_ns: int, start_ns: int, end_ns: int, rng: np.random.Generator
    ) -> tuple[Floats, Ints | None]:
        """Arrivals under a profile: those at unit rate, through the inverse of the integrated rate."""
        before = float(profile.expected((start_ns - origin_ns) / NS))
        total = float(profile.expected((end_ns - origin_ns) / NS)) - before
        unit, lines = self._arrive(1.0, 0, total * NS, rng)
        return origin_ns + profile.when_s(before + unit / NS) * NS, lines

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
    ) -> ArrivalSchedule:
        """The schedule with lengths; empirical ones of both columns come from the same lines.

        Each column has a generator of its own: how the k-th length comes out does not depend on the rate.
        """
        streams = [np.random.default_rng([seed, dwell + 1, column]) for column in (1, 2)]
        count, inputs, outputs = len(due_ns), None, None
        if self.trace is not None:
            lines = streams[0].integers(len(self.trace), size=count) if lines is None else lines
            inputs, outputs = self.trace.input_tokens[lines], self.trace.output_tokens[lines]
        return ArrivalSchedule(
            dwell=dwell,
            seq=np.arange(first_seq, first_seq + count, dtype=np.int64),
            due_ns=due_ns,
            phase=phase,
            input_tokens=draw_lengths(self._workload.input_tokens, count, streams[0], inputs),
            output_tokens=draw_lengths(self._workload.output_tokens, count, streams[1], outputs),
        )
