"""Mean power of a node over a window, from samples of its power.

A stretch without samples counts as unknown, never as 0 W.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from analysis.rows import metrics
from analysis.stats.quantiles import Floats

MOST_GAP_NS = 10_000_000_000
"""Two samples farther apart say nothing of the time between them: twice the 5 s of a tool (our choice)."""
KERNEL = "hwmon"
"""The source of samples that come from the kernel's files."""
LEAST_COVERAGE = 0.9
"""Share of a window that must be covered for its mean to be told (our choice)."""


@dataclass(frozen=True, slots=True)
class MeanPower:
    """Mean watts over the covered share of a window; `watts` is None where too little is covered."""

    watts: float | None
    coverage: float


@dataclass(frozen=True, slots=True)
class NodeSamples:
    """The samples of one node; `gpu_watts` has a row for each, and a column for each GPU that ever told.

    NaN is unknown. `gpus` also counts those that never told; `meter_watts` are of the whole machine.
    """

    name: str
    clock_ns: Floats
    idle: Floats
    gpu_watts: Floats
    meter_watts: Floats
    gpus: int
    sources: tuple[str, ...]
    errors: tuple[str, ...]

    @property
    def told(self) -> int:
        """Number of GPUs that told their power."""
        return int(self.gpu_watts.shape[1])

    @property
    def silent(self) -> str:
        """The reason why the power of the GPUs is unknown; empty if it is told.

        The kernel tells of two dies or partitions with one sensor once. A tool tells each GPU by itself.
        """
        if self.told == self.gpus > 0 or (self.told and self.sources == (KERNEL,)):
            return ""
        if self.told:
            return f"{self.told} of its {self.gpus} GPUs told theirs"
        return self.errors[0] if self.errors else "no answer"

    def was_asked(self, start_ns: float, end_ns: float) -> bool:
        """True if there is any sample of the node in a window, also one without a figure."""
        return bool(((self.clock_ns >= start_ns) & (self.clock_ns <= end_ns)).any())

    def gpus_mean(self, start_ns: float, end_ns: float) -> MeanPower:
        """Mean watts of all GPUs together; covered is what every one of them covers."""
        means = [mean_power(self.clock_ns, each, start_ns, end_ns) for each in self.gpu_watts.T]
        coverage = min((mean.coverage for mean in means), default=0.0)
        known = [mean.watts for mean in means if mean.watts is not None]
        return MeanPower(sum(known) if known and len(known) == len(means) else None, coverage)

    def meter_mean(self, start_ns: float, end_ns: float) -> MeanPower:
        """Mean watts of the whole machine."""
        return mean_power(self.clock_ns, self.meter_watts, start_ns, end_ns)

    def idle_watts(self) -> tuple[float | None, float | None]:
        """Watts before the load, of the GPUs and of the machine: the median of each over the samples.

        The median, for the last warm-up request may still be felt in the first of them.
        """
        rest = self.idle > 0
        gpus = [_median(each[rest]) for each in self.gpu_watts.T]
        known = [gpu for gpu in gpus if gpu is not None]
        return sum(known) if known and len(known) == len(gpus) else None, _median(self.meter_watts[rest])


def by_node(samples: pa.Table) -> list[NodeSamples]:
    """The samples of each node (schema `records.POWER`), by its name."""
    samples = samples.sort_by("clock_ns")
    nodes = np.array(samples["node"].to_pylist(), dtype=object)
    return [_of_node(name, samples.filter(pa.array(nodes == name))) for name in sorted(set(nodes))]


def _of_node(name: str, samples: pa.Table) -> NodeSamples:
    rows = [row or [] for row in samples["gpu_watts"].to_pylist()]
    watts = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for at, row in enumerate(rows):
        watts[at, : len(row)] = [np.nan if each is None else each for each in row]
    words = {key: tuple(dict.fromkeys(filter(None, samples[key].to_pylist()))) for key in ("source", "error")}
    return NodeSamples(
        name,
        metrics.numbers(samples, "clock_ns"),
        np.array(samples["idle"].to_pylist(), dtype=np.float64),
        watts[:, ~np.isnan(watts).all(axis=0)],
        metrics.numbers(samples, "node_watts"),
        watts.shape[1],
        words["source"],
        words["error"],
    )


def mean_power(clock_ns: Floats, watts: Floats, start_ns: float, end_ns: float) -> MeanPower:
    """Mean of the line through the known samples, over the part of a window that they cover."""
    known = ~np.isnan(watts)
    at, w = clock_ns[known], watts[known]
    if len(at) < 2 or end_ns <= start_ns:
        return MeanPower(None, 0.0)
    begin, end = np.clip(at[:-1], start_ns, end_ns), np.clip(at[1:], start_ns, end_ns)
    length = np.where(np.diff(at) <= MOST_GAP_NS, end - begin, 0.0)
    middle_watts = np.interp((begin + end) / 2, at, w)  # the mean of a straight line is its middle
    covered_ns = float(length.sum())
    coverage = covered_ns / (end_ns - start_ns)
    if coverage < LEAST_COVERAGE:
        return MeanPower(None, coverage)
    return MeanPower(float((length * middle_watts).sum()) / covered_ns, coverage)


def _median(watts: Floats) -> float | None:
    known = watts[~np.isnan(watts)]
    return float(np.median(known)) if len(known) else None
