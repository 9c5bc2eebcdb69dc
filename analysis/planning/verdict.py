"""A plan as a verdict: what plan.json holds and what terminal, notebook and report show."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.planning.evidence import Evidence
from analysis.planning.money import Day, FleetCost, FleetPower
from analysis.planning.serve_scaling import ServeSettings
from analysis.planning.sizing import Availability, FleetCapacity, Sizing
from analysis.stats.estimate import Estimate
from conf.specs.planning import Basis, Margins

if TYPE_CHECKING:
    from analysis.views.shown import Answer


@dataclass(frozen=True, slots=True)
class DemandRates:
    """The demand as rates of the whole service in QPS; `mean_qps` is None if only the peak is known."""

    peak_qps: float
    mean_qps: float | None
    hourly_qps: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LostNodes:
    """The rate that is kept within the bounds after a loss of nodes, and its share of the peak."""

    lost_nodes: int
    kept_qps: float
    share_of_peak: float


@dataclass(frozen=True, slots=True)
class FewSpares:
    """Nodes that are down, where more are down at once than are spare.

    They are `on_average` so many, and at most `down_nodes` in a share `target` of the time; the others keep
    `kept_qps`. `assumed`: the availability was not given.
    """

    node_availability: float
    target: float
    assumed: bool
    on_average: float
    down_nodes: int
    kept_qps: float
    share_of_peak: float


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Nodes for one demand: as planned, at the upper end of the capacity (None if unknown), and naively."""

    demand_qps: float
    nodes: int
    nodes_at_high: int | None
    naive_nodes: int


@dataclass(frozen=True, slots=True)
class MeasuredEfficiency:
    """E(n) at one node count of the evidence; exactly 1 at the fewest."""

    nodes: int
    efficiency: Estimate


@dataclass(frozen=True, slots=True)
class PlannedEfficiency:
    """E(n) at the planned nodes; `assumed` where it lies beyond the measured node counts.

    `measured` is empty where the evidence has one node count, so that E = 1 there by definition.
    """

    assumed: bool
    at_planned: float
    measured: tuple[MeasuredEfficiency, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Nodes for a demand and what follows from them. Parts that were not asked for are None.

    The nodes are planned with `service`, the capacity of `planned_on` at the end that `basis` names (`low` if
    only that is known). `rules` applies the two rules, `nodes` also the availability if one was asked;
    `binding` names the rule that asks for the most: normal, degraded, both, or availability. `nodes_at` has
    the nodes at each known figure of the capacity. `naive_nodes` divide by the estimate; `needed_nodes` carry
    the peak with neither headroom nor spare. `engines` and `gpus` are None where they are unknown.
    """

    schema_version: int = 1
    verb: str = "plan"
    valid: bool = True
    exit_code: int
    reason: str = ""
    planned_on: Evidence
    demand: DemandRates
    care: Margins
    basis: Basis
    service: FleetCapacity
    nodes: int
    binding: str
    nodes_at: Mapping[str, int]
    needed_nodes: int
    naive_nodes: int
    engines: int | None
    gpus: int | None
    rules: Sizing
    efficiency: PlannedEfficiency
    degraded: tuple[LostNodes, ...]
    few_spares: FewSpares | None
    availability: Availability | None
    day: Day | None
    cost: FleetCost | None
    power: FleetPower | None
    by_demand: tuple[CurvePoint, ...]
    into_service: ServeSettings | None = None

    def answer(self) -> "Answer":
        """The plan as `python -m analysis plan` prints it; Jupyter shows it as HTML."""
        from analysis.views import plan  # shows what this file defines

        return plan.answer(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """The verdict on evidence that allows no plan, with the exit code of that evidence."""

    schema_version: int = 1
    verb: str = "plan"
    valid: bool = False
    exit_code: int
    reason: str
