"""The basis of a plan: one capacity, the figure of it that is planned with, and the effects in other runs.

Runs of other node counts give E(n), runs of other lengths the effect of lengths. Of the demand it knows only
the lengths.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.planning.efficiency import ScalingEfficiency, alone, lengths_differ, scaling, unlike
from analysis.planning.elasticity import LengthSensitivity, Moved, sensitivity
from analysis.planning.evidence import Evidence, IntervalEstimate, Qps
from analysis.planning.request_means import MeanLengths
from analysis.planning.sizing import FleetCapacity
from analysis.results.runs import RunError
from analysis.stats.pooling import NORMAL_95, NORMAL_975
from conf.specs.planning import Basis, Demand

ENDS = ("low", "certified", "estimate", "high")
"""A certified figure is a 5 % quantile, the ends of a ratio are at 2.5 %: the
ratio's half-width is scaled by 1.645 / 1.960 (for Student's t, with heavier tails, rather too much)."""


@dataclass(frozen=True, slots=True)
class PlanBasis:
    """`qps` is the capacity per node at the planned `lengths`; `moved` is its ratio to the measured one.

    `end` names the figure of it that `service` is planned with: as asked, or `low` if only that is known.
    """

    evidence: Evidence
    qps: Qps
    lengths: MeanLengths | None
    end: Basis
    service: FleetCapacity
    sensitivity: LengthSensitivity | None
    moved: Moved | None

    @property
    def best_qps(self) -> float:
        """The estimate per node, or the planned figure if there is none."""
        return self.qps.estimate or self.service.qps_per_node


def plan_basis(found: Evidence, others: Sequence[Evidence], demand: Demand, basis: Basis) -> PlanBasis:
    """The basis of a plan on `found`, with the node counts and lengths of `others`.

    Raises RunError for others of another service, lengths nobody measured, or an end that is unknown.
    """
    efficiency, by_length = _of_others(found, others)
    lengths, moved = _moved(found, demand, by_length)
    qps = found.qps if moved is None else times(found.qps, moved.ratio)
    basis = "low" if found.open_above else basis
    service = FleetCapacity(_planning_qps(found.name, qps, basis), found.nodes, efficiency)
    return PlanBasis(found, qps, lengths, basis, service, by_length, moved)


def _of_others(
    found: Evidence, others: Sequence[Evidence]
) -> tuple[ScalingEfficiency, LengthSensitivity | None]:
    for other in others:
        difference = unlike(found, other)
        both = difference == "lengths" and other.nodes != found.nodes
        if both or difference not in ("", "lengths"):
            what = "lengths and node count" if both else difference
            raise RunError(
                f"{other.name} differs from {found.name} in {what}; beside the first run plan takes others "
                "of the same service, at other node counts or other lengths"
            )
    varied = [other for other in others if lengths_differ(found, other)]
    same = [other for other in others if other not in varied]
    repeats = [other for other in same if other.nodes == found.nodes]
    if repeats and len(repeats) == len(others):
        raise RunError(
            f"{repeats[0].name} has the nodes and lengths of {found.name} and adds nothing to its plan; "
            "leave it out (a study of several deployments pools repeats)"
        )
    efficiency = scaling([found, *same]) if len(same) > len(repeats) else alone(found)
    return efficiency, sensitivity([found, *repeats, *varied]) if varied else None


def _moved(
    found: Evidence, demand: Demand, by_length: LengthSensitivity | None
) -> tuple[MeanLengths | None, Moved | None]:
    """The planned lengths, and the ratio of the capacity there to the measured one."""
    asked = {name: getattr(demand, name) for name in ("input_tokens", "output_tokens", "prefix_hit")}
    given = {name: value for name, value in asked.items() if value is not None}
    if not given:
        return found.lengths, None
    if found.lengths is None:
        raise RunError(f"{found.name} does not say its lengths; leave demand.{next(iter(given))} out")
    to = replace(found.lengths, **given, source="as asked")
    if by_length is not None:
        return to, by_length.moved(to)
    if lengths_differ(found, replace(found, lengths=to)):
        raise RunError(
            f"demand.{next(iter(given))}: {found.name} does not say what other lengths do to its capacity; "
            "also give runs that vary them"
        )
    return found.lengths, None


def times(qps: Qps, ratio: IntervalEstimate) -> Qps:
    """A capacity times a ratio with its own interval, the two independent in ln.

    A bound without an estimate has no known uncertainty and takes the ratio's whole half-width.
    """

    def end(value: float | None, of: float | None, quantile: float = NORMAL_975) -> float | None:
        if value is None:
            return None
        unsure = 0.0 if of is None else math.log(of / ratio.value) * quantile / NORMAL_975
        own = 0.0 if qps.estimate is None else math.log(value / qps.estimate)
        moved = math.copysign(math.hypot(own, unsure), unsure or own)
        return (qps.estimate or value) * ratio.value * math.exp(moved)

    return Qps(
        estimate=None if qps.estimate is None else qps.estimate * ratio.value,
        low=end(qps.low, ratio.low),
        high=end(qps.high, ratio.high),
        certified=end(qps.certified, ratio.low, NORMAL_95),
    )


def _planning_qps(name: str, qps: Qps, basis: Basis) -> float:
    value: float | None = getattr(qps, basis)
    if value is None:
        known = [end for end in ENDS[:3] if getattr(qps, end) is not None]
        raise RunError(f"{name}: the {basis} end of its capacity is unknown; choose plan.basis={known[-1]}")
    return value
