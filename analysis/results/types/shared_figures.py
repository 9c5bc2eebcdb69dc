"""Parts that verdicts of several kinds share: the question, figures of a capacity, counts, checks, events."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from analysis.capacity.posterior import LimitFit
from analysis.results.types.fields import always
from conf.specs.bounds import Limit, Slo, parsed

MODELLED = ("simulated", "vllm_emulated")
"""Engines whose step times are those of the engine model."""
WindowRow = Mapping[str, Any]
"""One line of dwells.parquet (schema `dwell_table.DWELLS`)."""


@dataclass(frozen=True, slots=True)
class AskedBounds(Slo):
    """The bounds beside an answer, whatever their file was named."""

    @classmethod
    def beside(cls, slo: Slo) -> "AskedBounds":
        return cls("", slo.ttft_p90_ms, slo.tpot_p90_ms, slo.at_most_ms, slo.joint, slo.itl_within)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedExperiment:
    """The experiment behind an answer, in the words of its configuration groups.

    `vllm_version` and `constants` (a fingerprint) are known of an emulated vLLM alone. Model, hardware,
    layout and routing of external endpoints are `unknown` unless words said them. `gpus_per_node` counts the
    GPUs that engines use. `workload` and its lengths, `tokens`, are as `conf.labels` says them.
    """

    engine: str
    vllm_version: str | None = None
    constants: str | None = None
    model: str
    hardware: str
    cluster: str = always("")
    layout: str
    gpus_per_node: int | None = None
    routing: str
    data_path: str = always("")
    sessions: int = always(0)
    conversations: str = always("")
    workload: str
    tokens: str = ""
    arrivals: str = always("poisson")
    search: str = always("")
    nodes: int
    replicas: int
    slo: AskedBounds
    seed: int | None = always(None)
    time_scale: float = always(1.0)
    kernels: tuple[str, ...] = always(())

    @property
    def load(self) -> str:
        """The workload with its lengths, as it stands beside a rate."""
        return f"{self.workload}: {self.tokens}" if self.tokens else self.workload

    @property
    def is_modelled(self) -> bool:
        """True of an engine whose step times are those of the engine model."""
        return self.engine in MODELLED


@dataclass(frozen=True, slots=True)
class QpsFigures:
    """A capacity in QPS with its 95 % interval; `certified` is the 5 % quantile. An unknown end is None."""

    estimate: float
    low: float | None
    high: float | None
    certified: float | None

    def over(self, parts: float) -> "QpsFigures":
        """The same per one of so many parts."""
        ends = (None if end is None else end / parts for end in (self.low, self.high, self.certified))
        return QpsFigures(self.estimate / parts, *ends)


@dataclass(frozen=True, slots=True)
class ConstantsRatio:
    """Quantiles of a capacity under other constants of the engine model, over that under their values.

    `low` and `high` are the 2.5 and the 97.5 % quantile, `certified` is the 5 % quantile.
    """

    low: float
    high: float
    certified: float


@dataclass(frozen=True, slots=True)
class SamplingNoise:
    """Quantiles of a simulated capacity in QPS per node by the sampling noise of its run alone.

    `low` and `high` are the ends of the 95 % interval, `lowest_5pct` is the 5 % quantile.
    """

    low: float | None
    high: float | None
    lowest_5pct: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFigures:
    """A capacity as a verdict claims it: of a search, of several runs together, or predicted.

    `open_above`: the low end is a bound and the rest unknown; `open_below` likewise, `queue_grew` if that is
    because the queue still grew in windows that kept the bounds. `at_end` is known of predictions: the
    bounds are kept at the highest rate of the question. `dwells_used` and `limits` are known of searches
    alone. `qps_per_node` of a simulated engine joins its `constants` with the `sampling_noise`; where
    `constants` are missing, `constants_unknown` says why.
    """

    qps_per_node: QpsFigures
    qps_per_replica: QpsFigures | None = always(None)
    sampling_noise: SamplingNoise | None = None
    constants: ConstantsRatio | None = None
    constants_unknown: str = ""
    interval: str = always("")
    binding: Limit
    binding_probability: float | None = always(None)
    open_above: bool = always(False)
    open_below: bool = always(False)
    queue_grew: bool = False
    at_end: bool | None = None
    dwells_used: tuple[int, ...] | None = None
    limits: Mapping[Limit, LimitFit] | None = None

    def __post_init__(self) -> None:
        for limit in (self.binding, *(self.limits or ())):
            parsed(limit)

    @property
    def sampling(self) -> QpsFigures:
        """The figures by sampling noise alone."""
        q, noise = self.qps_per_node, self.sampling_noise
        return QpsFigures(q.estimate, noise.low, noise.high, noise.lowest_5pct) if noise else q


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Planned requests, rows, rows by status, and failed ones by kind (`http_error 429`)."""

    planned: int
    rows: int
    by_status: Mapping[str, int]
    by_failure: Mapping[str, int] = field(default_factory=dict)
