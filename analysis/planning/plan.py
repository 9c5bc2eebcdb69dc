"""A plan: nodes for a demand on a measured or predicted capacity, and what follows from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from analysis.planning import money, sizing
from analysis.planning.evidence import Evidence, NotPlannable, Source, capacities, evidence_of
from analysis.planning.serve_scaling import ServeSettings
from analysis.planning.sizing import FleetCapacity, ScalingEfficiency, ScalingPoint
from analysis.results import summary
from analysis.results.locations import refuse_repeated
from analysis.results.runs import RunError
from analysis.stats.estimate import Estimate
from conf.compose import load_groups
from conf.specs.planning import Basis, Demand, Margins, Planning

if TYPE_CHECKING:
    from analysis.views.shown import Answer


@dataclass(frozen=True, slots=True)
class DemandRates:
    """The demand as rates of the whole service in QPS; `mean_qps` is None if only the peak is known."""

    peak_qps: float
    mean_qps: float | None
    hourly_qps: tuple[float, ...]

    @property
    def served(self) -> tuple[float, str]:
        """The rate that is served as far as it is known, and which one that is: the mean, else the peak."""
        return (self.peak_qps, "peak") if self.mean_qps is None else (self.mean_qps, "mean")


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
    rules: sizing.Sizing
    efficiency: PlannedEfficiency
    degraded: tuple[LostNodes, ...]
    few_spares: FewSpares | None
    availability: sizing.Availability | None
    day: money.Day | None
    cost: money.FleetCost | None
    power: money.FleetPower | None
    by_demand: tuple[CurvePoint, ...]
    into_service: ServeSettings | None = None

    def answer(self) -> "Answer":
        """The plan as `python -m analysis plan` prints it; Jupyter shows it as HTML."""
        from analysis.views import plan as view  # shows what this file defines

        return view.answer(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """The verdict on evidence that allows no plan, with the exit code of that evidence."""

    schema_version: int = 1
    verb: str = "plan"
    valid: bool = False
    exit_code: int
    reason: str


ENDS = {"low": "low", "certified": "certified", "estimate": "value", "high": "high"}
"""Figures of a capacity that a plan can rest on, by the words of plan.basis."""
CURVE = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
"""Shares of the peak for which nodes are listed beside it."""
USUAL_AVAILABILITY, USUAL_TARGET = 0.995, 0.999
"""Availability of a node and share of the time to judge spares by, where none is given (our choice)."""
WORST_LOST = 3
"""Most lost nodes that are listed, beside the spares (our choice)."""
LOWER_BOUND = "only a lower bound of the capacity is known: at most so many nodes"


def plan(
    source: Source, demand: Demand | float, care: Margins | None = None, others: Sequence[Source] = ()
) -> Plan:
    """Nodes for a demand (or a peak rate in QPS) on one capacity.

    `others` are capacities of the same service at other node counts, which give E(n). Raises RunError or
    ConfigError with one line, NotPlannable if the run allows no plan.
    """
    care = care or Margins()
    load = demand_rates(Demand(peak_qps=float(demand)) if isinstance(demand, int | float) else demand)
    rest = [evidence for other in others for evidence in capacities(other)]
    on = evidence_of(source)
    basis: Basis = "low" if on.open_above else care.basis
    service = FleetCapacity(_planning_qps(on, basis), on.nodes, _efficiency(on, rest))
    rules = sizing.size(load.peak_qps, service, care.headroom, care.spare_nodes)
    nodes = sizing.fleet(load.peak_qps, service, care)
    sized = {
        end: sizing.fleet_at(load.peak_qps, service, _figure(on.qps_per_node, end), care) for end in ENDS
    }
    nodes_at = {end: count for end, count in sized.items() if count is not None}
    e = service.efficiency
    needed_nodes, external = sizing.needed(load.peak_qps, service), on.experiment.engine == "external"
    return Plan(
        exit_code=summary.EXIT_OPEN if on.open_above else summary.EXIT_OK,
        reason=LOWER_BOUND if on.open_above else "",
        planned_on=on,
        demand=load,
        care=care,
        basis=basis,
        service=service,
        nodes=nodes,
        binding=rules.binding if nodes == rules.nodes else "availability",
        nodes_at=nodes_at,
        needed_nodes=needed_nodes,
        naive_nodes=sizing.naive(load.peak_qps, on.qps_per_node.value),
        engines=None if external else round(nodes * on.experiment.replicas / on.experiment.nodes),
        gpus=on.gpus_per_node and on.gpus_per_node * nodes,
        rules=rules,
        efficiency=PlannedEfficiency(
            assumed=nodes - care.spare_nodes < e.fewest or nodes > e.most,
            at_planned=float(e.at(np.array([nodes]))[0]),
            measured=tuple(MeasuredEfficiency(*pair) for pair in e.measured()),
        ),
        degraded=_degraded(nodes, service, load.peak_qps, care.spare_nodes),
        few_spares=_few_spares(nodes, service, load.peak_qps, care),
        availability=sizing.availability(needed_nodes, care),
        day=_day(load, on, service, care),
        cost=_cost(nodes, nodes_at, load, on, service, care.node_hour_usd),
        power=_power(nodes, load, on, care.node_watts),
        by_demand=_by_demand(load.peak_qps, on, service, care),
    )


def demand_rates(demand: Demand) -> DemandRates:
    """The rates of a demand; reads its file of rates by the hour. Raises ConfigError for a wrong file."""
    if demand.hourly:
        rates = money.read_hourly(Path(demand.hourly))
        return DemandRates(max(rates), sum(rates) / len(rates), rates)
    return DemandRates(demand.at_peak_qps, demand.on_average_qps, ())


def _efficiency(on: Evidence, others: Sequence[Evidence]) -> ScalingEfficiency:
    if not others:  # E = 1, an assumption
        return ScalingEfficiency((ScalingPoint(on.nodes, on.qps_per_node.value, 0.0),))
    efficiency = sizing.scaling([on, *others])
    if all(other.nodes == on.nodes for other in others):
        raise RunError(
            f"{others[0].name} has the nodes of {on.name} and adds nothing to its plan; leave it out (a "
            "study of several deployments pools repeats)"
        )
    return efficiency


def _planning_qps(on: Evidence, basis: Basis) -> float:
    value = _figure(on.qps_per_node, basis)
    if value is None:
        known = [end for end in ENDS if end != "high" and _figure(on.qps_per_node, end) is not None]
        raise RunError(
            f"{on.name}: the {basis} end of its capacity is unknown; choose plan.basis={known[-1]}"
        )
    return value


def _figure(qps: Estimate, end: str) -> float | None:
    """The figure of a capacity by its word in `ENDS`; None where it is unknown, as all but the bound is."""
    if qps.is_bound and end != "low":
        return None
    value: float | None = getattr(qps, ENDS[end])
    return value


def _degraded(nodes: int, service: FleetCapacity, peak_qps: float, spares: int) -> tuple[LostNodes, ...]:
    """The service with one, two and three nodes lost, and with as many as are spare."""
    lost = sorted({*range(1, WORST_LOST + 1), spares} - {0})
    kept = [(n, service.kept_qps(nodes - n)) for n in lost if n < nodes]
    return tuple(LostNodes(n, qps, qps / peak_qps) for n, qps in kept)


def _few_spares(nodes: int, service: FleetCapacity, peak_qps: float, care: Margins) -> FewSpares | None:
    """A warning that independent failures take more nodes than there are spares; None if they do not."""
    up, target = care.node_availability, care.target_availability
    availability, share = up or USUAL_AVAILABILITY, target or USUAL_TARGET
    down = sizing.down_at_once(nodes, availability, share)
    if down <= care.spare_nodes:
        return None
    kept_qps, average = service.kept_qps(nodes - down), nodes * (1 - availability)
    return FewSpares(availability, share, up is None, average, down, kept_qps, kept_qps / peak_qps)


def _power(nodes: int, load: DemandRates, on: Evidence, node_watts: float | None) -> money.FleetPower | None:
    """The power of the fleet at the watts that were given, else at those that the run measured."""
    source = on.watts_source if node_watts is None else "as given"
    node_watts = on.node_watts if node_watts is None else node_watts
    if node_watts is None:
        return None
    served, what = load.served
    watts = nodes * node_watts
    wh = watts / (served * money.SECONDS_PER_HOUR)
    return money.FleetPower(
        node_watts=node_watts,
        fleet_kw=watts / 1e3,
        kwh_per_day=money.HOURS * watts / 1e3,
        served_qps=served,
        load=what,
        wh_per_request=wh,
        kwh_per_1m_output_tokens=None if on.lengths is None else wh / on.lengths.output_tokens * 1e6 / 1e3,
        source=source,
    )


def _day(load: DemandRates, on: Evidence, service: FleetCapacity, care: Margins) -> money.Day | None:
    if not load.hourly_qps:
        return None
    lead = on.ready_minutes if care.scale_up_minutes is None else care.scale_up_minutes
    nodes = [sizing.fleet(rate, service, care) for rate in load.hourly_qps]
    return money.day(load.hourly_qps, nodes, lead, care.node_hour_usd)


def _cost(
    nodes: int,
    nodes_at: dict[str, int],
    load: DemandRates,
    on: Evidence,
    service: FleetCapacity,
    node_hour_usd: float | None,
) -> money.FleetCost | None:
    if node_hour_usd is None:
        return None
    served, what = load.served
    use = served / replace(service, qps_per_node=on.qps_per_node.value).kept_qps(nodes)
    low, high = nodes_at.get("low"), nodes_at.get("high")
    fleet = Estimate(
        nodes, None if high is None else min(high, nodes), None if low is None else max(low, nodes)
    )
    request_usd = fleet.times(node_hour_usd / (served * money.SECONDS_PER_HOUR))
    efficiency = service.kept_qps(nodes) / nodes / service.qps_per_node
    return money.FleetCost(
        full_use=money.cost_at(on.qps_per_node.times(efficiency), on.lengths, node_hour_usd),
        planned=money.cost_of(request_usd, on.lengths, node_hour_usd, use),
        served_qps=served,
        load=what,
    )


def _by_demand(
    peak_qps: float, on: Evidence, service: FleetCapacity, care: Margins
) -> tuple[CurvePoint, ...]:
    points = []
    for demand_qps in (share * peak_qps for share in CURVE):
        nodes = sizing.fleet_at(demand_qps, service, service.qps_per_node, care)
        at_high = sizing.fleet_at(demand_qps, service, on.qps_per_node.high, care)
        if nodes is not None:
            points.append(
                CurvePoint(demand_qps, nodes, at_high, sizing.naive(demand_qps, on.qps_per_node.value))
            )
    return tuple(points)


def command(
    sources: Sequence[Source],
    words: Sequence[str],
    predict: Callable[[], Source] | None = None,
) -> Plan | NoPlan:
    """The plan on the first of `sources`; the others show the effect of node counts.

    Without sources `predict` gives one; it may take minutes, so it is called after the words are checked.
    A source is a folder, a run, or a tree of sweep.json, study.json or a prediction, grids included. `words`
    are demand.* and plan.*. The `exit_code` is 0, or 6 where only a lower bound is known, and without a plan
    (`valid` false) that of the run, 4 of a void one. Raises RunError and ConfigError for wrong usage.
    """
    planning = load_groups(Planning, words)
    demand_rates(planning.demand)  # refuses a bad file of hours
    folders = [Path(source) for source in sources if isinstance(source, Path | str)]
    refuse_repeated(folders, "a run counts once")
    if not sources and predict is None:
        raise RunError("plan needs a run folder, or words of what is to be predicted; see --help")
    if not sources and predict:
        sources = [predict()]
    try:
        first, *others = [evidence for source in sources for evidence in capacities(source)]
        return plan(first, planning.demand, planning.plan, others)
    except NotPlannable as error:
        return NoPlan(exit_code=error.exit_code, reason=str(error))
