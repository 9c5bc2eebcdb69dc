"""Specs of a plan and of a recommendation: the demand to serve, the margins, the shapes."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from conf.io.check import AtLeastOne, BelowOne, Positive, Range, Share, require
from conf.specs.rules import Ruled

MOST_SPARES = 1000
MINUTES_PER_DAY = 1440
MOST_PLANNED_QPS = 1e9
"""A higher demand is a slip of the finger (our choice)."""

Basis = Literal["low", "certified", "estimate"]
_Rate = Annotated[float, Range(gt=0, le=MOST_PLANNED_QPS)]


@dataclass(frozen=True, slots=True)
class Demand(Ruled):
    """The rate that the whole service must serve, in requests per second, in one of three ways.

    They are `peak_qps`; `mean_qps` times `peak_factor` (beside a peak, either gives the mean, which a
    cost per request needs); or `hourly`, a file of 24 mean rates from midnight. Lengths are those of the
    run.
    """

    peak_qps: _Rate | None = None
    mean_qps: _Rate | None = None
    peak_factor: Annotated[float, Range(ge=1)] | None = None
    hourly: str = ""

    @property
    def at_peak_qps(self) -> float:
        """The peak rate. Raises ValueError for a demand by the hour, whose file must be read first."""
        if self.peak_qps is not None:
            return self.peak_qps
        if self.mean_qps is None or self.peak_factor is None:
            raise ValueError("demand.hourly names a file; read it first")
        return self.mean_qps * self.peak_factor

    @property
    def on_average_qps(self) -> float | None:
        """The mean rate; None if only the peak is known."""
        if self.mean_qps is not None:
            return self.mean_qps
        return self.peak_qps / self.peak_factor if self.peak_qps and self.peak_factor else None


@dataclass(frozen=True, slots=True)
class Margins(Ruled):
    """Margins of a plan, and facts that no run measures.

    `basis` is the figure of the capacity: `low`, the low end of its 95 % interval, because users notice a
    fleet that is too small; `certified`, its 5 % quantile; or `estimate`, as often too high as too low.
    `headroom` is the share of it left free at the peak: 15 % (our choice), since at capacity one request
    in ten is at its bound. `spare_nodes` may fail at the peak: one, for maintenance or a fault. Prices,
    availability and the time until a node serves have no default; watts are those that the run measured,
    if it did.
    """

    basis: Basis = "low"
    headroom: BelowOne = 0.15
    spare_nodes: Annotated[int, Range(ge=0, le=MOST_SPARES)] = 1
    node_hour_usd: Positive | None = None
    node_watts: Positive | None = None
    node_availability: Share | None = None
    target_availability: Share | None = None
    scale_up_minutes: Annotated[float, Range(ge=0, le=MINUTES_PER_DAY)] | None = None


@dataclass(frozen=True, slots=True)
class Planning:
    """The words demand.* and plan.* of `python -m analysis plan`."""

    demand: Demand
    plan: Margins = field(default_factory=Margins)


MOST_SHAPES = 200
"""Most shapes of one command: some four minutes of two cores (our choice)."""


@dataclass(frozen=True, slots=True)
class Recommend:
    """The shapes to compare: each of `layouts` with each of `budgets`, at each of `hits`.

    No layouts means all files of conf/layout; no budgets (tokens of a step, max_num_batched_tokens) the
    layout's own, its half and its double; no hits the workload's own. A hit rate is the share of a prompt
    that the prefix cache holds; it is no choice, so that each has a ranking of its own.
    """

    layouts: list[str] = field(default_factory=list)
    budgets: list[AtLeastOne] = field(default_factory=list)
    hits: list[BelowOne] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("layouts", "budgets", "hits"):
            values = getattr(self, name)
            require(len(set(values)) == len(values), f"recommend.{name}={values} has a value twice")


@dataclass(frozen=True, slots=True)
class Recommendation(Ruled):
    """The words demand.*, plan.* and recommend.* of `python -m loadgen recommend`."""

    demand: Demand
    plan: Margins = field(default_factory=Margins)
    recommend: Recommend = field(default_factory=Recommend)
