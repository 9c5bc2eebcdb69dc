"""Ray Serve's autoscaling settings for a planned layout, by Little's law."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.planning.request_life import RequestLife
from analysis.planning.sizing import fleet
from analysis.results.runs import RunError
from analysis.stats.estimate import Estimate

if TYPE_CHECKING:
    from analysis.planning.verdict import Plan

RAY_UPSCALE_DELAY_S, RAY_DOWNSCALE_DELAY_S = 30.0, 600.0
LOOK_BACK_S, REPORT_S = 30.0, 10.0
"""Defaults of `AutoscalingConfig` in Ray 2.60: both delays, what is averaged over, time between reports."""
SHARE_OF_START = 0.1
"""Wait before more engines are asked for, as a share of their start, which it makes longer (our choice)."""
STARTS_BEFORE_LESS = 2.0
"""Starts of an engine for which fewer must be wanted before one goes (our choice): an engine that is wanted
again costs a whole start, during which the others are too few."""
DOWNSCALING_FACTOR = 0.25
"""Share of what is too many that goes at once (our choice; Ray's default is 1). Requests on an engine grow
faster than its rate, so that lightly loaded engines look superfluous: with 1 all of them may go at once and
then be missing (not measured here)."""


@dataclass(frozen=True, slots=True)
class ServeScaling:
    """Settings of Ray Serve's `AutoscalingConfig` under its names, in engines, and what they rest on.

    `target_ongoing_requests` is `working_qps` of an engine times the mean `life` of a request; its interval
    is that of the life alone. A node holds `per_node` engines. `least_of` names the demand that wants the
    fewest.
    """

    min_replicas: int
    max_replicas: int
    target_ongoing_requests: Estimate
    upscale_delay_s: float
    downscale_delay_s: float
    per_node: int
    certified_qps: float
    working_qps: float
    headroom: float
    life: RequestLife
    scale_up_s: float
    least_of: str

    @property
    def config(self) -> dict[str, int | float]:
        """The values as they are written into `autoscaling_config`."""
        return {
            "min_replicas": self.min_replicas,
            "max_replicas": self.max_replicas,
            "target_ongoing_requests": float(f"{self.target_ongoing_requests.value:.4g}"),
            "upscale_delay_s": self.upscale_delay_s,
            "downscale_delay_s": self.downscale_delay_s,
            "downscaling_factor": DOWNSCALING_FACTOR,
            "look_back_period_s": LOOK_BACK_S,
        }


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The settings in a file for Ray Serve, what they rest on, and what to know before the file is used."""

    file: str
    autoscaling_config: Mapping[str, int | float]
    rests_on: ServeScaling
    notes: tuple[str, ...] = ()


def working_qps_per_node(plan: "Plan") -> tuple[float, float]:
    """The certified rate per node, and the one at which it is to work: less by the headroom.

    Raises RunError where only a lower bound of the capacity is known, or no certified rate.
    """
    evidence = plan.planned_on
    if evidence.open_above:
        raise RunError(
            f"{evidence.name} knows only a lower bound of its capacity: engines would be asked for too soon; "
            "measure at higher rates (search.highest_qps)"
        )
    certified = evidence.qps_per_node.certified
    if certified is None:
        raise RunError(f"{evidence.name} has no certified rate; measure a sweep to its end")
    return certified, certified * (1 - plan.care.headroom)


def serve_scaling(plan: "Plan", life: RequestLife, per_node: int) -> ServeScaling:
    """The settings of a plan. Raises RunError, in one line with the remedy, for what they would lack."""
    certified, working = working_qps_per_node(plan)
    scale_up_s = 60 * _scale_up_minutes(plan)
    least, least_of = _least_nodes(plan)
    upscale_s = min(RAY_UPSCALE_DELAY_S, max(REPORT_S, SHARE_OF_START * scale_up_s))
    return ServeScaling(
        min_replicas=least * per_node,
        max_replicas=max(plan.nodes, least) * per_node,
        target_ongoing_requests=life.seconds.times(working / per_node),
        upscale_delay_s=round(upscale_s, 1),
        downscale_delay_s=round(max(RAY_DOWNSCALE_DELAY_S, STARTS_BEFORE_LESS * scale_up_s), 1),
        per_node=per_node,
        certified_qps=certified / per_node,
        working_qps=working / per_node,
        headroom=plan.care.headroom,
        life=life,
        scale_up_s=scale_up_s,
        least_of=least_of,
    )


def _scale_up_minutes(plan: "Plan") -> float:
    """Minutes until a new engine serves: as given, or those of the run's own deployment. Raises RunError."""
    evidence, minutes = plan.planned_on, plan.care.scale_up_minutes
    minutes = evidence.ready_minutes if minutes is None else minutes
    if minutes is None:
        raise RunError(
            f"{evidence.name} loaded no model on a node, so that the time until a new engine serves is "
            "unknown; add plan.scale_up_minutes=MINUTES"
        )
    return minutes


def _least_nodes(plan: "Plan") -> tuple[int, str]:
    """The fewest nodes ever wanted, and the demand that wants them. Raises RunError if none is known."""
    if plan.day is not None:
        return min(plan.day.nodes), "the quietest hour"
    if plan.demand.mean_qps is None:
        raise RunError("the fewest engines need a demand by the hour, demand.hourly=FILE, or its mean")
    nodes = fleet(plan.demand.mean_qps, plan.service, plan.care)
    return nodes, "the mean demand, because its hours are not known"
