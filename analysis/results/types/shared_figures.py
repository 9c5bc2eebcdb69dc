"""Parts that verdicts of several kinds share: the question, figures of a capacity, counts, checks, events."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.capacity.posterior import Capacity, LimitFit
from analysis.stats.estimate import Estimate
from conf.specs.bounds import Limit, Slo, parsed

MODELLED = ("simulated", "vllm_emulated")
"""Engines whose step times are those of the engine model."""
WindowRow = Mapping[str, Any]
"""One line of windows.parquet (schema `window_table.WINDOWS`)."""


@dataclass(frozen=True, slots=True)
class AskedBounds(Slo):
    """The bounds beside an answer, whatever their file was named."""

    @classmethod
    def beside(cls, slo: Slo) -> "AskedBounds":
        return cls("", slo.ttft_p90_ms, slo.tpot_p90_ms, slo.at_most_ms, slo.joint, slo.itl_within)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedExperiment:
    """The experiment behind an answer, in the words of its configuration groups.

    `vllm_version` is that of an emulated vLLM, or the one whose scheduling rules a simulated engine follows;
    `constants` (a fingerprint) are known of an emulated vLLM alone. Model, hardware,
    layout and routing of external endpoints are `unknown` unless words said them. `gpus_per_node` counts the
    GPUs that engines use. `workload` and its lengths, `tokens`, are as `conf.labels` says them. `outside` is
    what the fit behind a simulated engine's constants did not have (`conf.transfers`).
    """

    engine: str
    vllm_version: str | None = None
    constants: str | None = None
    model: str
    hardware: str
    cluster: str = ""
    layout: str
    gpus_per_node: int | None = None
    routing: str
    data_path: str = ""
    sessions: int = 0
    conversations: str = ""
    workload: str
    tokens: str = ""
    arrivals: str = "poisson"
    search: str = ""
    nodes: int
    replicas: int
    slo: AskedBounds
    seed: int | None = None
    time_scale: float = 1.0
    kernels: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    @property
    def load(self) -> str:
        """The workload with its lengths, as it stands beside a rate."""
        return f"{self.workload}: {self.tokens}" if self.tokens else self.workload

    @property
    def is_modelled(self) -> bool:
        """True of an engine whose step times are those of the engine model."""
        return self.engine in MODELLED


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFigures:
    """A capacity as a verdict claims it: of a search, of several runs together, or predicted.

    `open_above`: the low end is a bound and the rest unknown; `open_below` likewise, `queue_grew` if that is
    because the queue still grew in windows that kept the bounds. `at_end` is known of predictions: the
    bounds are kept at the highest rate of the question. `windows_used` and `limits` are known of searches
    alone. `qps_per_node` of a simulated engine joins the `constants` of the engine model, a ratio around 1,
    with the run's own sampling noise, which `by_noise` has alone; where `constants` are missing,
    `constants_unknown` says why.
    """

    qps_per_node: Estimate
    qps_per_replica: Estimate | None = None
    by_noise: Estimate | None = None
    constants: Estimate | None = None
    constants_unknown: str = ""
    interval: str = ""
    binding: Limit
    binding_probability: float | None = None
    open_above: bool = False
    open_below: bool = False
    queue_grew: bool = False
    at_end: bool | None = None
    windows_used: tuple[int, ...] | None = None
    limits: Mapping[Limit, LimitFit] | None = None

    def __post_init__(self) -> None:
        for limit in (self.binding, *(self.limits or ())):
            parsed(limit)

    @classmethod
    def from_posterior(cls, capacity: Capacity, replicas_per_node: float | None) -> "CapacityFigures":
        """The figures of a search in QPS per node and, where the replicas are known, per replica."""
        q = Estimate(capacity.qps_per_node, capacity.low, capacity.high, capacity.certified)
        if capacity.queue_grew:
            q = replace(q, low=None, certified=None)
        return cls(
            qps_per_node=q,
            qps_per_replica=None if replicas_per_node is None else q.per(replicas_per_node),
            interval="95 % (2.5 to 97.5 % quantile of the posterior); certified is its 5 % quantile",
            binding=capacity.binding,
            binding_probability=capacity.binding_probability,
            open_above=capacity.open_above,
            open_below=capacity.open_below,
            queue_grew=capacity.queue_grew,
            windows_used=tuple(capacity.windows),
            limits=dict(capacity.limits),
        )

    @property
    def sampling(self) -> Estimate:
        """The figures by sampling noise alone."""
        return self.by_noise or self.qps_per_node

    @property
    def claimed(self) -> Estimate:
        """What is claimed per node: the estimate, or the one end that a measurement knows."""
        return self.claimed_of(self.qps_per_node)

    def claimed_of(self, figures: Estimate) -> Estimate:
        """What is claimed of figures of this capacity per node, per replica, or by noise alone."""
        measured = self.at_end is None
        if measured and self.open_above and figures.low is not None:
            return replace(Estimate.at_least(figures.low), certified=figures.certified)
        if measured and self.open_below and figures.high is not None:
            return Estimate.at_most(figures.high)
        return figures


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Planned requests, rows, rows by status, and failed ones by kind (`http_error 429`)."""

    planned: int
    rows: int
    by_status: Mapping[str, int]
    by_failure: Mapping[str, int] = field(default_factory=dict)
