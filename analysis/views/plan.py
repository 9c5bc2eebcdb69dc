"""The answer of `plan`: nodes for a demand, the rules that ask for them, and what follows."""

import math
from collections.abc import Iterator
from dataclasses import replace

from analysis.planning.plan import NoPlan, Plan
from analysis.results import summary
from analysis.results.experiment_facts import named
from analysis.stats.estimate import certified, interval, middle, number, span
from analysis.views.shown import Answer, Fact, Table

BASES = {
    "low": "the low end",
    "certified": "the certified value",
    "estimate": "the estimate",
    "high": "the high end",
}
DENOMINATORS = {
    "per_1k_requests_usd": "1k requests",
    "per_1m_input_tokens_usd": "1M input tokens",
    "per_1m_output_tokens_usd": "1M output tokens",
    "per_1m_total_tokens_usd": "1M total tokens",
}
NO_PRICE = "cost: not computed, for the price of a node has no default: plan.node_hour_usd=USD"
NO_WATTS = "not computed, for no node told its watts, and they have no default: plan.node_watts=W"


def answer(plan: Plan | NoPlan) -> Answer:
    """The nodes with their grounds, or why there is no plan."""
    if isinstance(plan, NoPlan):
        word = "VOID" if plan.exit_code == summary.EXIT_VOID else "NO PLAN"
        return Answer(word, "bad", plan.reason)
    return Answer(
        word="PLAN" if plan.planned_on.found_by == "measured" else plan.planned_on.found_by.upper(),
        tone="short" if plan.exit_code else "good",
        headline=f"{_fleet(plan)}; {_efficiency(plan)}",
        facts=(*_basis(plan), *_rules(plan), *_hours(plan), *_power(plan), *_service(plan)),
        tables=tuple(_cost_tables(plan)),
        notes=(*([] if plan.cost else [NO_PRICE]), *(plan.into_service.notes if plan.into_service else ())),
    )


def _fleet(plan: Plan) -> str:
    upper, nodes = plan.nodes_at.get("high"), _nodes(plan.nodes)
    counted = f"{nodes} ({'unknown' if upper is None else f'{upper:,}'} at the upper bound)"
    if plan.planned_on.open_above:
        counted = f"at most {nodes} (the capacity is known from below only)"
    gpus = f", {plan.gpus:,} GPUs," if plan.gpus else ", GPUs unknown,"
    return f"{counted}{gpus} for {_qps(plan.demand.peak_qps)} at the peak"


def _efficiency(plan: Plan) -> str:
    """The efficiency in the first line, called assumed where it was not measured."""
    e, found_by = plan.efficiency, plan.planned_on.found_by
    most = _nodes(plan.service.efficiency.most)
    if not e.measured and e.assumed:
        return f"E(n) = 1 ASSUMED ({found_by} on {most} only)"
    value = f"E({plan.nodes}) = {e.at_planned:.3g}"
    return f"{value} ASSUMED ({found_by} up to {most})" if e.assumed else value


def _basis(plan: Plan) -> Iterator[Fact]:
    """The capacity, and the service that has it."""
    on, experiment, q = plan.planned_on, plan.planned_on.experiment, plan.planned_on.qps_per_node
    capacity = f"{span(q)} QPS per node"
    if not q.is_bound:
        claim = "" if q.certified is None else f", certified {certified(q)}"
        capacity = f"{middle(q)} QPS per node, 95 % interval {interval(q)}{claim}"
    noise = on.sampling_qps_per_node
    alone = f"; sampling noise of this run alone {interval(noise)}" if noise else ""
    yield on.name, f"{on.found_by} {capacity}{alone}"
    margins = f"{100 * plan.care.headroom:g} % headroom, {plan.care.spare_nodes} spare"
    yield "planned with", f"{BASES[plan.basis]}, {_planned(plan)} QPS per node; {margins}"
    model, hardware, layout = (
        named(kind, getattr(experiment, kind)) for kind in ("model", "hardware", "layout")
    )
    by = f"{experiment.engine} engine, routing {experiment.routing}"
    yield "service", f"{model} on {hardware}, {layout}, {by}"
    yield "bounds", experiment.slo.text
    if on.lengths:
        tokens = f"{on.lengths.input_tokens:.0f} tokens in, {on.lengths.output_tokens:.0f} out"
        hit = f"prefix hit {100 * on.lengths.prefix_hit:.0f} %"
        yield "lengths", f"{tokens}, {hit} ({on.lengths.source})"
    if on.caution:
        yield "caution", on.caution


def _rules(plan: Plan) -> Iterator[Fact]:
    """The fewest nodes by each rule, the efficiency, and what is kept when nodes are lost."""
    sizing, k, nodes = plan.rules, plan.care.spare_nodes, plan.planned_on.nodes
    # E(n) is relative to the run's nodes, if these were not the fewest.
    since = "" if nodes == plan.service.efficiency.fewest else f" / E({nodes})"
    peak, per_node = f"{sizing.demand_qps:g}", _planned(plan)
    normal = f"{peak} <= n x {per_node} x {1 - plan.care.headroom:g} x E(n){since}"
    yield "normal", f"{normal}: {_nodes(sizing.normal_nodes)}{_binds(plan, 'normal')}"
    if k:
        degraded = f"{peak} <= (n - {k}) x {per_node} x E(n - {k}){since}"
        yield f"{_nodes(k)} lost", f"{degraded}: {_nodes(sizing.degraded_nodes)}{_binds(plan, 'degraded')}"
    at = ", ".join(f"{BASES[end]}: {nodes:,}" for end, nodes in plan.nodes_at.items())
    naive = f"{plan.naive_nodes:,} by naive division, without interval, headroom and spare"
    yield "nodes planned with", f"{at}; {naive}"
    if plan.efficiency.measured:
        points = ", ".join(f"E({at.nodes}) = {span(at.efficiency)}" for at in plan.efficiency.measured)
        between = "between them linear in ln n; the nodes above take these values, not their intervals"
        yield f"{plan.planned_on.found_by} efficiency", f"{points}; {between}"
    yield from _lost(plan)
    if up := plan.availability:
        name = f"{_share(up.target)} availability at {_share(up.node_availability)} per node"
        reached = f"which reach {_share(up.reached)} (independent failures only)"
        needed = f"{up.needed_nodes:,} must be up, so {_nodes(up.nodes)}"
        yield name, f"{needed}, {reached}{_binds(plan, 'availability')}"


def _binds(plan: Plan, rule: str) -> str:
    binds = plan.binding == rule or (plan.binding == "both" and rule != "availability")
    return " (binds)" if binds else ""


def _lost(plan: Plan) -> Iterator[Fact]:
    spares, few = plan.care.spare_nodes or 1, plan.few_spares
    for row in plan.degraded:
        if row.lost_nodes == spares:
            kept = f"{_qps(row.kept_qps)} within the bounds, {100 * row.share_of_peak:.0f} % of the peak"
            yield f"with {_nodes(row.lost_nodes)} lost", f"the others keep {kept}"
    if few:
        known = "assumed; plan.node_availability" if few.assumed else "as given"
        yield (
            f"{plan.care.spare_nodes} spare of {_nodes(plan.nodes)} is FEW",
            f"at {_share(few.node_availability)} availability per node ({known}) {few.on_average:.2g} are"
            f" down on average and up to {few.down_nodes:,} in {_share(few.target)} of the time (independent"
            f" failures only); with so many lost the others keep {_qps(few.kept_qps)},"
            f" {100 * few.share_of_peak:.0f} % of the peak",
        )


def _hours(plan: Plan) -> Iterator[Fact]:
    """Nodes by the hour of a day; none where the hours are unknown."""
    day = plan.day
    if day is None:
        return
    lead, least = day.scale_up_minutes, ""
    ahead = f"each hour's nodes {lead:g} minutes ahead" if lead is not None else ""
    if lead is None:
        ahead, least = "the time to scale up is unknown: plan.scale_up_minutes", "at least "
    yield "nodes by hour, from midnight", " ".join(map(str, day.nodes))
    yield "the peak", "the busiest hour's mean; what exceeds it within that hour is left to the headroom"
    autoscaled = f"{least}{day.autoscaled_node_hours:,.1f} autoscaled ({ahead})"
    usd = ""
    if day.fixed_usd is not None and day.autoscaled_usd is not None:
        usd = f"; {_usd(day.fixed_usd)} against {least}{_usd(day.autoscaled_usd)}"
    yield "node-hours a day", f"{day.fixed_node_hours:,.0f} fixed, {autoscaled}{usd}"


def _cost_tables(plan: Plan) -> Iterator[Table]:
    """The cost per request and token, at full use and at the rate that is served; none without a price."""
    cost = plan.cost
    if cost is None:
        return
    served = f"at its {cost.load} of {_qps(cost.served_qps)}"
    use = f"{served}, {100 * cost.planned.use:.0f} % full [fleets of both ends]"
    rows = tuple(
        (name, *(f"${span(getattr(at_load, key))}" for at_load in (cost.full_use, cost.planned)))
        for key, name in DENOMINATORS.items()
        if getattr(cost.full_use, key)
    )
    notes = ["per token unknown, for the lengths are"] if len(rows) < len(DENOMINATORS) else []
    if cost.load == "peak":
        notes.append("on average more, by the unknown mean: demand.mean_qps or demand.peak_factor")
    price = _usd(cost.full_use.node_hour_usd)
    title = f"cost of this fleet at {price} per node-hour, the whole of it in each row"
    yield Table(title, ("per", "at full use", use), rows, note="; ".join(notes))


def _power(plan: Plan) -> Iterator[Fact]:
    """Power and energy of the fleet, or why they are unknown."""
    drawn = plan.power
    if drawn is None:
        yield "power", NO_WATTS
        return
    tokens = drawn.kwh_per_1m_output_tokens
    per_tokens = "unknown" if tokens is None else f"{tokens:.3g} kWh"
    yield (
        f"power at {drawn.node_watts:,.0f} W per node, {drawn.source}, all the time",
        f"{drawn.fleet_kw:,.1f} kW, {drawn.kwh_per_day:,.0f} kWh a day; at its {drawn.load} of"
        f" {_qps(drawn.served_qps)} {drawn.wh_per_request:.3g} Wh per request, {per_tokens} per 1M output"
        " tokens",
    )


def _service(plan: Plan) -> Iterator[Fact]:
    if settings := plan.into_service:
        config = settings.autoscaling_config
        target = f"{number(config['target_ongoing_requests'])} requests on each by Little's law"
        engines = f"{config['min_replicas']} to {config['max_replicas']} engines, {target}"
        reasons = f"{engines}; its comments give the reasons"
        yield f"Ray Serve's autoscaling in {settings.file}", reasons
        use = "on a cluster whose nodes had the variables in its comments before ray start"
        yield "to use it", f"{use}: serve deploy {settings.file}"


def _planned(plan: Plan) -> str:
    """The planned rate in the digits of its capacity, a certified one rounded down."""
    q = plan.planned_on.qps_per_node
    if plan.basis == "certified":
        return certified(q)
    return middle(replace(q, value=plan.service.qps_per_node))


def _nodes(count: int) -> str:
    return f"{count:,} node{'' if count == 1 else 's'}"


def _share(share: float) -> str:
    """Per cent, rounded down to two digits of the rest: 99.9994 never becomes 100."""
    digits = 0 if share >= 1 else max(0, math.ceil(-math.log10(1 - share)) - 1)
    scale = 10**digits
    return f"{math.floor(100 * share * scale + 1e-6) / scale:.12g} %"


def _qps(rate: float) -> str:
    return f"{rate:,.0f} QPS" if rate >= 1000 else f"{rate:.4g} QPS"


def _usd(value: float) -> str:
    return f"${value:,.2f}"
