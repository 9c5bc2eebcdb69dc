"""Figures in a verdict: a capacity, each limited quantile at one rate, and counts of requests."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.capacity.posterior import Capacity, LimitFit
from analysis.results.experiment_facts import ExperimentFacts
from analysis.stats.estimate import Estimate
from conf.specs.bounds import Limit, parsed

WindowRow = Mapping[str, Any]
"""One line of windows.parquet (schema `window_table.WINDOWS`)."""
JOINT, ALONE = "joint", "sampling noise alone"
"""Kinds of the interval of a simulated capacity."""
LEAD = "SIMULATED, "
"""Stands before the word of a verdict whose certified values are simulated."""
AND_CONSTANTS = "; joined with what is unknown of the engine model's constants"
NOT_RECORDED = "the result does not hold it"
HELD = (
    "the uncertainty of the engine model's constants, and sampling noise; what the model lacks is not in it"
)
MISSING = "what is unknown of the engine model's constants is not in it ({})"
"""What the interval of a simulated capacity holds, and what it lacks."""


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

    def joined(self, constants: Estimate | str) -> "CapacityFigures":
        """A capacity of sampling noise alone, joined with the constants, or with why they are unknown.

        `constants` are quantiles of the capacity under other constants of the engine model, over that under
        their values. The two are independent: distances from the estimate to a quantile, in ln, add as
        squares; the bound of an open capacity is moved by the constants alone.
        """
        if isinstance(constants, str):
            return replace(self, constants_unknown=constants)
        sampling, replica = self.qps_per_node, self.qps_per_replica

        def quantile(qps: float | None, ratio: float | None, side: int) -> float | None:
            if qps is None or ratio is None:
                return None
            if self.open_above or self.open_below:
                return qps * ratio
            distance = math.hypot(math.log(qps / sampling.value), math.log(ratio))
            return sampling.value * math.exp(side * distance)

        both = Estimate(
            sampling.value,
            low=quantile(sampling.low, constants.low, -1),
            high=quantile(sampling.high, constants.high, +1),
            certified=quantile(sampling.certified, constants.certified, -1),
        )
        return replace(
            self,
            qps_per_node=both,
            qps_per_replica=replica and both.per(sampling.value / replica.value),
            by_noise=sampling,
            constants=constants,
            interval=f"{self.interval}{AND_CONSTANTS}",
        )

    def joined_like(self, other: "CapacityFigures") -> "CapacityFigures":
        """A capacity of sampling noise alone, joined with the constants of another one of the same engine."""
        constants = other.constants or other.constants_unknown
        return self.joined(constants) if constants else self

    def kind(self, experiment: ExperimentFacts) -> str:
        """`JOINT` or `ALONE` for the interval of a simulated capacity, empty for a measured one."""
        if not experiment.is_modelled:
            return ""
        return JOINT if self.constants else ALONE

    @property
    def held(self) -> str:
        """What the interval of a simulated capacity holds, or lacks."""
        return HELD if self.constants else MISSING.format(self.constants_unknown or NOT_RECORDED)


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Planned requests, rows, rows by status, and failed ones by kind (`http_error 429`)."""

    planned: int
    rows: int
    by_status: Mapping[str, int]
    by_failure: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """A limited quantile in ms against its bound, or the `share` of requests or gaps within it.

    `ms` is None where the quantile is unknown or does not apply; `passed` is None then too. An interval that
    is unknown takes `needs` requests, or about `needs_s` seconds where there were enough requests in too few
    independent stretches. A predicted quantile knows two causes apart: its interval by Monte Carlo noise
    alone, `by_noise`, and by the constants alone, `by_constants`.
    """

    ms: Estimate | None
    bound_ms: float
    passed: bool | None
    by_noise: Estimate | None = None
    by_constants: Estimate | None = None
    share: float | None = None
    needs: int | None = None
    needs_s: float | None = None

    @property
    def has_interval(self) -> bool:
        """True if an end of the interval is known."""
        return self.ms is not None and self.ms.ends != (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateFigures:
    """A rate, and the limited quantiles there by the names of their bounds."""

    rate_qps_per_node: float
    limits: Mapping[Limit, Quantile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for limit in self.limits:
            parsed(limit)

    @property
    def missed(self) -> list[Limit]:
        """Names of the bounds that are not kept."""
        return [limit for limit, quantile in self.limits.items() if quantile.passed is False]

    @property
    def unshown(self) -> dict[Limit, int]:
        """Bounds that are kept by too few requests for an interval, and how many it takes."""
        return {
            limit: quantile.needs
            for limit, quantile in self.limits.items()
            if quantile.passed and quantile.needs
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePiece(RateFigures):
    """The part of a load profile between two of its points."""

    from_s: float
    to_s: float
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredRate:
    """The verdict on a required rate (passed, failed, undecided) after so many interim analyses."""

    verdict: str
    reason: str
    looks: int
    capacity: CapacityFigures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFigures(RateFigures):
    """One rate, or one closed loop, against the bounds.

    `concurrency` is None in an open loop, and 0 where no closed loop could be asked for: of a required or
    a predicted rate. `varies`, `offered` and `pieces` are those of a measured probe. `not_shown` is why the
    window is too short to show that the rate is within its bounds; empty if it shows that, or a missed bound.
    """

    loop: str = "open"
    varies: bool | None = None
    concurrency: int | None = 0
    offered: str | None = None
    window_s: float | None = None
    pieces: tuple[ProfilePiece, ...] | None = None
    required: RequiredRate | None = None
    not_shown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldFigures(RateFigures):
    """The confirmation run at the certified rate; it vetoes if even the upper end of its own capacity lies
    below that rate."""

    window_s: float
    requests: int
    valid: bool
    void_reason: str
    capacity_high_qps_per_node: float
    vetoed: bool
