"""The plan: nodes for a demand on a measured or predicted capacity, and what follows from them.

Joins the rules; each rule, and the basis of a plan, has a file of its own beside this one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.planning.basis import ENDS, PlanBasis, figure, plan_basis
from analysis.planning.day import Day, day, read_hourly
from analysis.planning.money import Cost, cost_of, fleet_cost
from analysis.planning.power import FleetPower, fleet_power
from analysis.planning.sizing import (
    Availability,
    FleetCapacity,
    Sizing,
    available,
    down_at_once,
    naive,
    needed,
    size,
)
from analysis.planning.sources import Source, evidence_of, expanded
from analysis.results.runs import RunError
from analysis.stats.estimate import Estimate
from conf.specs.planning import Demand, Margins

CURVE = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
"""Shares of the peak for which nodes are listed beside it."""
USUAL_AVAILABILITY, USUAL_TARGET = 0.995, 0.999
"""Availability of a node and share of the time to judge spares by, where none is given (our choice)."""
WORST_LOST = 3
"""Most lost nodes that are listed, beside the spares (our choice)."""


@dataclass(frozen=True, slots=True)
class DemandRates:
    """The demand as rates of the whole service in QPS; `mean_qps` is None if only the peak is known."""

    peak_qps: float
    mean_qps: float | None
    hourly_qps: tuple[float, ...]

    @classmethod
    def of(cls, demand: Demand) -> "DemandRates":
        """Reads the file of a demand by the hour. Raises ConfigError for a wrong file."""
        if demand.hourly:
            rates = read_hourly(Path(demand.hourly))
            return cls(max(rates), sum(rates) / len(rates), rates)
        return cls(demand.at_peak_qps, demand.on_average_qps, ())


@dataclass(frozen=True, slots=True)
class Lost:
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
class FleetCost:
    """Cost of the planned fleet at full use of its capacity, and at the rate that it serves.

    It serves `served_qps`, the mean `load` if it is known, else the peak. The ends of its cost are those of
    fleets planned on the ends of the capacity.
    """

    full_use: Cost
    planned: Cost
    served_qps: float
    load: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Nodes for a demand, and their `basis`.

    `sizing` applies the two rules, `nodes` also the availability if one was asked; `nodes_at` has the nodes
    at each known figure of the capacity. `naive_nodes` divide by the estimate; `needed_nodes` carry the peak
    with neither headroom nor spare.
    """

    basis: PlanBasis
    load: DemandRates
    care: Margins
    sizing: Sizing
    nodes: int
    nodes_at: dict[str, int]
    naive_nodes: int
    needed_nodes: int
    availability: Availability | None
    degraded: tuple[Lost, ...]
    few_spares: FewSpares | None
    day: Day | None
    money: FleetCost | None
    power: FleetPower | None
    curve: tuple[CurvePoint, ...]

    @property
    def binding(self) -> str:
        """The rule that asks for the most nodes: normal, degraded, both, or availability."""
        return self.sizing.binding if self.nodes == self.sizing.nodes else "availability"

    def answer(self) -> str:
        """The plan as `python -m analysis plan` prints it."""
        from analysis.planning import plan_text, plan_tree  # they read plans

        return plan_text.text(plan_tree.tree(self))


def plan(
    source: Source, demand: Demand | float, care: Margins | None = None, others: Sequence[Source] = ()
) -> Plan:
    """Nodes for a demand (or a peak rate in QPS) on one capacity.

    `others` are capacities of the same service at other node counts, which give E(n). Raises RunError or
    ConfigError with one line, NotPlannable if the run allows no plan.
    """
    care = care or Margins()
    demand = Demand(peak_qps=float(demand)) if isinstance(demand, int | float) else demand
    load = DemandRates.of(demand)
    rest = [evidence_of(other) for other in expanded(others)]
    on = plan_basis(evidence_of(source), rest, care.basis)
    need = needed(load.peak_qps, on.service)
    nodes = fleet(load.peak_qps, on.service, care)
    nodes_at = _nodes_at(load.peak_qps, on, care)
    return Plan(
        basis=on,
        load=load,
        care=care,
        sizing=size(load.peak_qps, on.service, care.headroom, care.spare_nodes),
        nodes=nodes,
        nodes_at=nodes_at,
        naive_nodes=naive(load.peak_qps, on.best_qps),
        needed_nodes=need,
        availability=_available(need, care),
        degraded=_degraded(nodes, on.service, load.peak_qps, care.spare_nodes),
        few_spares=_few_spares(nodes, on.service, load.peak_qps, care),
        day=_day(load, on, care),
        money=_money(nodes, nodes_at, load, on, care.node_hour_usd),
        power=_power(nodes, load, on, care.node_watts),
        curve=_curve(load.peak_qps, on, care),
    )


def _available(need: int, care: Margins) -> Availability | None:
    if care.node_availability is None or care.target_availability is None:
        return None
    return available(need, care.node_availability, care.target_availability)


def fleet(rate_qps: float, service: FleetCapacity, care: Margins) -> int:
    """Nodes for a rate by all rules: headroom, spares, and the availability if one was asked.

    Raises RunError if no number of nodes serves it.
    """
    found = _available(needed(rate_qps, service), care)
    by_rules = size(rate_qps, service, care.headroom, care.spare_nodes).nodes
    return max(by_rules, found.nodes if found else 0)


def _degraded(nodes: int, service: FleetCapacity, peak_qps: float, spares: int) -> tuple[Lost, ...]:
    """The service with one, two and three nodes lost, and with as many as are spare."""
    lost = sorted({*range(1, WORST_LOST + 1), spares} - {0})
    kept = [(n, service.kept_qps(nodes - n)) for n in lost if n < nodes]
    return tuple(Lost(n, qps, qps / peak_qps) for n, qps in kept)


def _few_spares(nodes: int, service: FleetCapacity, peak_qps: float, care: Margins) -> FewSpares | None:
    """A warning that independent failures take more nodes than there are spares; None if they do not."""
    up, target = care.node_availability, care.target_availability
    availability, share = up or USUAL_AVAILABILITY, target or USUAL_TARGET
    down = down_at_once(nodes, availability, share)
    if down <= care.spare_nodes:
        return None
    kept_qps, average = service.kept_qps(nodes - down), nodes * (1 - availability)
    return FewSpares(availability, share, up is None, average, down, kept_qps, kept_qps / peak_qps)


def _power(nodes: int, load: DemandRates, on: PlanBasis, node_watts: float | None) -> FleetPower | None:
    """The power of the fleet at the watts that were given, else at those that the run measured."""
    served, what = _served(load)
    if node_watts is not None:
        return fleet_power(nodes, node_watts, served, what, on.evidence.lengths)
    told = on.evidence.node_watts
    if told is None:
        return None
    source = f"measured, of {told.of}, at {told.rate_qps_per_node:.2f} QPS per node"
    return fleet_power(nodes, told.watts, served, what, on.evidence.lengths, source)


def _served(load: DemandRates) -> tuple[float, str]:
    """The rate that the fleet serves over a day, and its name."""
    return (load.peak_qps, "peak") if load.mean_qps is None else (load.mean_qps, "mean")


def _day(load: DemandRates, on: PlanBasis, care: Margins) -> Day | None:
    if not load.hourly_qps:
        return None
    lead = on.evidence.ready_minutes if care.scale_up_minutes is None else care.scale_up_minutes
    return day(load.hourly_qps, [fleet(rate, on.service, care) for rate in load.hourly_qps], lead)


def _money(
    nodes: int, nodes_at: dict[str, int], load: DemandRates, on: PlanBasis, node_hour_usd: float | None
) -> FleetCost | None:
    if node_hour_usd is None:
        return None
    served, what = _served(load)
    use = served / replace(on.service, qps_per_node=on.best_qps).kept_qps(nodes)
    low, high = nodes_at.get("low"), nodes_at.get("high")
    fleet = Estimate(
        nodes, None if high is None else min(high, nodes), None if low is None else max(low, nodes)
    )
    efficiency = on.service.kept_qps(nodes) / nodes / on.service.qps_per_node
    return FleetCost(
        full_use=cost_of(on.qps.times(efficiency), on.evidence.lengths, node_hour_usd),
        planned=fleet_cost(fleet, served, use, on.evidence.lengths, node_hour_usd),
        served_qps=served,
        load=what,
    )


def _sized(
    demand_qps: float, service: FleetCapacity, qps_per_node: float | None, care: Margins
) -> int | None:
    """Nodes by all rules at another capacity per node; None if that is unknown, or no nodes suffice."""
    if qps_per_node is None:
        return None
    try:
        return fleet(demand_qps, replace(service, qps_per_node=qps_per_node), care)
    except RunError:
        return None


def _nodes_at(demand_qps: float, on: PlanBasis, care: Margins) -> dict[str, int]:
    sized = {end: _sized(demand_qps, on.service, figure(on.qps, end), care) for end in ENDS}
    return {end: nodes for end, nodes in sized.items() if nodes is not None}


def _curve(peak_qps: float, on: PlanBasis, care: Margins) -> tuple[CurvePoint, ...]:
    points = []
    for demand_qps in (share * peak_qps for share in CURVE):
        nodes = _sized(demand_qps, on.service, on.service.qps_per_node, care)
        at_high = _sized(demand_qps, on.service, on.qps.high, care)
        if nodes is not None:
            points.append(CurvePoint(demand_qps, nodes, at_high, naive(demand_qps, on.best_qps)))
    return tuple(points)
