"""The basis of a plan: one capacity, and the figure of it that is planned with.

Runs of other node counts give E(n). Of the demand it knows nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.planning.efficiency import ScalingEfficiency, alone, scaling, unlike
from analysis.planning.evidence import Evidence, Qps
from analysis.planning.sizing import FleetCapacity
from analysis.results.runs import RunError
from conf.specs.planning import Basis

ENDS = ("low", "certified", "estimate", "high")


@dataclass(frozen=True, slots=True)
class PlanBasis:
    """`end` names the figure of the capacity that `service` is planned with: as asked, or `low` if only that
    is known.
    """

    evidence: Evidence
    end: Basis
    service: FleetCapacity

    @property
    def qps(self) -> Qps:
        """The capacity per node."""
        return self.evidence.qps

    @property
    def best_qps(self) -> float:
        """The estimate per node, or the planned figure if there is none."""
        return self.qps.estimate or self.service.qps_per_node


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
    value: float | None = getattr(found.qps, basis)
    if value is None:
        known = [end for end in ENDS[:3] if getattr(found.qps, end) is not None]
        raise RunError(
            f"{found.name}: the {basis} end of its capacity is unknown; choose plan.basis={known[-1]}"
        )
    return value
