"""The basis of a plan: one capacity, and the figure of it that is planned with.

Runs of other node counts give E(n). Of the demand it knows nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.planning.efficiency import ScalingEfficiency, alone, scaling, unlike
from analysis.planning.evidence import Evidence
from analysis.planning.sizing import FleetCapacity
from analysis.results.runs import RunError
from analysis.stats.estimate import Estimate
from conf.specs.planning import Basis

ENDS = {"low": "low", "certified": "certified", "estimate": "value", "high": "high"}
"""Figures of a capacity that a plan can rest on, by the words of plan.basis."""


@dataclass(frozen=True, slots=True)
class PlanBasis:
    """`end` names the figure of the capacity that `service` is planned with: as asked, or `low` if only that
    is known.
    """

    evidence: Evidence
    end: Basis
    service: FleetCapacity

    @property
    def qps(self) -> Estimate:
        """The capacity per node."""
        return self.evidence.qps

    @property
    def best_qps(self) -> float:
        """The estimate per node, or the bound if only that is known."""
        return self.qps.value


def plan_basis(found: Evidence, others: Sequence[Evidence], basis: Basis) -> PlanBasis:
    """The basis of a plan on `found`, with the node counts of `others`.

    Raises RunError for others of another service or other lengths, or an end that is unknown.
    """
    basis = "low" if found.open_above else basis
    service = FleetCapacity(_planning_qps(found, basis), found.nodes, _efficiency(found, others))
    return PlanBasis(found, basis, service)


def _efficiency(found: Evidence, others: Sequence[Evidence]) -> ScalingEfficiency:
    for other in others:
        if difference := unlike(found, other):
            raise RunError(
                f"{other.name} differs from {found.name} in {difference}; beside the first run plan takes "
                "others of the same service and lengths, at other node counts"
            )
    if not others:
        return alone(found)
    if all(other.nodes == found.nodes for other in others):
        raise RunError(
            f"{others[0].name} has the nodes of {found.name} and adds nothing to its plan; leave it out (a "
            "study of several deployments pools repeats)"
        )
    return scaling([found, *others])


def _planning_qps(found: Evidence, basis: Basis) -> float:
    value = figure(found.qps, basis)
    if value is None:
        known = [end for end in ENDS if end != "high" and figure(found.qps, end) is not None]
        raise RunError(
            f"{found.name}: the {basis} end of its capacity is unknown; choose plan.basis={known[-1]}"
        )
    return value


def figure(qps: Estimate, end: str) -> float | None:
    """The figure of a capacity by its word in `ENDS`; None where it is unknown, as all but the bound is."""
    if qps.is_bound and end != "low":
        return None
    value: float | None = getattr(qps, ENDS[end])
    return value
