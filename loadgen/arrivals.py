"""The arrival schedule: every planned request as numpy arrays, drawn from a seed before the first send.

Knows due times and lengths; knows nothing of who sends them. The process is Poisson as it comes:
gaps are exponential and the count is whatever falls before the end, never rescaled to rate x time.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.schema import Lengths, Workload

PHASES = ("warmup", "ramp", "transition", "window", "bridge", "retracted")
NS = 1_000_000_000
RAREST_SIGMA = 4.75
"""Standard deviations that one normal draw of a million exceeds."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ArrivalSchedule:
    """Planned requests in order of due time; all arrays have one length.

    `seq` is the position in the run's master schedule, `due_ns` counts from the start of the run's
    clock, `phase` indexes `PHASES`, `dwell` is the segment (-1: warm-up).
    """

    dwell: int
    seq: Ints
    due_ns: Ints
    phase: Ints
    input_tokens: Ints
    output_tokens: Ints

    def __len__(self) -> int:
        return len(self.seq)

    def shard(self, i: int, n: int) -> "ArrivalSchedule":
        """The requests of actor `i` of `n`: those with seq mod n = i, whatever n the union is the same."""
        return self.where(self.seq % n == i)

    def where(self, mask: NDArray[np.bool_]) -> "ArrivalSchedule":
        """The requests selected by a boolean mask."""
        arrays: dict[str, Any] = {
            f.name: getattr(self, f.name)[mask] for f in fields(self) if f.name != "dwell"
        }
        return replace(self, **arrays)


def poisson_ns(rate_qps: float, start_ns: int, end_ns: int, rng: np.random.Generator) -> Ints:
    """Due times of a Poisson process of `rate_qps` in [start_ns, end_ns)."""
    expected = rate_qps * (end_ns - start_ns) / NS
    draws = rng.exponential(NS / rate_qps, size=int(expected + 6 * math.sqrt(expected) + 16))
    due = start_ns + np.cumsum(draws)
    while due[-1] < end_ns:
        due = np.concatenate([due, due[-1] + np.cumsum(rng.exponential(NS / rate_qps, size=len(draws)))])
    return due[due < end_ns].astype(np.int64)


def draw_lengths(lengths: Lengths, count: int, rng: np.random.Generator) -> Ints:
    """`count` token counts, each at least 1, with the mean (and for lognormal the cv) of `lengths`."""
    if lengths.kind == "fixed":
        return np.full(count, lengths.mean, dtype=np.int64)
    sigma = math.sqrt(math.log1p(lengths.cv**2))
    drawn = rng.lognormal(math.log(lengths.mean) - sigma**2 / 2, sigma, size=count)
    return np.maximum(1, np.rint(drawn)).astype(np.int64)


def longest_tokens(lengths: Lengths) -> int:
    """The longest of a million draws, about; a fixed length is its own."""
    sigma = math.sqrt(math.log1p(lengths.cv**2))
    return round(lengths.mean * math.exp(RAREST_SIGMA * sigma - sigma**2 / 2))


def draw(
    rate_qps: float,
    bounds_ns: dict[str, tuple[int, int]],
    workload: Workload,
    *,
    dwell: int,
    first_seq: int,
    seed: int,
) -> ArrivalSchedule:
    """One segment of the run: arrivals at `rate_qps` over adjoining phases `{name: (start, end)}`.

    The same seed and dwell give the same unit-rate arrivals and lengths, whatever ran before.
    """
    rng = np.random.default_rng([seed, dwell + 1])
    start_ns = min(start for start, _ in bounds_ns.values())
    end_ns = max(end for _, end in bounds_ns.values())
    due = poisson_ns(rate_qps, start_ns, end_ns, rng)
    phase = np.zeros(len(due), dtype=np.int64)
    for name, (start, end) in bounds_ns.items():
        phase[(due >= start) & (due < end)] = PHASES.index(name)
    return ArrivalSchedule(
        dwell=dwell,
        seq=np.arange(first_seq, first_seq + len(due), dtype=np.int64),
        due_ns=due,
        phase=phase,
        input_tokens=draw_lengths(workload.input_tokens, len(due), rng),
        output_tokens=draw_lengths(workload.output_tokens, len(due), rng),
    )


def evenly(count: int, start_ns: int, gap_ns: int, workload: Workload, seed: int) -> ArrivalSchedule:
    """The untimed warm-up: `count` requests of the workload's lengths, `gap_ns` apart."""
    rng = np.random.default_rng([seed, 0])
    return ArrivalSchedule(
        dwell=-1,
        seq=np.arange(count, dtype=np.int64),
        due_ns=start_ns + gap_ns * np.arange(count, dtype=np.int64),
        phase=np.zeros(count, dtype=np.int64),
        input_tokens=draw_lengths(workload.input_tokens, count, rng),
        output_tokens=draw_lengths(workload.output_tokens, count, rng),
    )
