"""A plan as text; knows the tree of a plan and computes nothing."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from analysis.results import summary
from analysis.stats.estimate import Estimate, certified, interval, middle, span
from conf.labels import named
from conf.specs.bounds import Slo

Tree = Mapping[str, Any]

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
INDENT = "  "


def text(tree: Tree) -> str:
    """The text of `python -m analysis plan`: nodes first, then their basis and what follows."""
    if not tree["valid"]:
        return headline(tree)
    lines = [INDENT + line for told in parts(tree).values() for line in told]
    return "\n".join([headline(tree), *lines])


def parts(tree: Tree) -> dict[str, list[str]]:
    """The lines of a plan below its answer, by what they tell of."""
    rules = (_rules, _efficiency, _degraded, _few_spares, _availability)
    return {
        "basis": _capacity(tree),
        "rules": [line for rule in rules for line in rule(tree)],
        "day": _day(tree),
        "cost": [*_cost(tree), *_power(tree)],
    }


def headline(tree: Tree) -> str:
    """The word, two spaces and the answer; of a refused plan the reason."""
    if not tree["valid"]:
        word = "VOID" if tree["exit_code"] == summary.EXIT_VOID else "NO PLAN"
        return f"{word}  {tree['reason']}"
    answer, on = tree["answer"], tree["planned_on"]
    nodes, upper = _nodes(answer["nodes"]), answer["nodes_at_high"]
    fleet = f"{nodes} ({'unknown' if upper is None else f'{upper:,}'} at the upper bound)"
    if on["open_above"]:
        fleet = f"at most {nodes} (the capacity is known from below only)"
    word = "PLAN" if on["found_by"] == "measured" else on["found_by"].upper()
    gpus = f", {answer['gpus']:,} GPUs," if answer["gpus"] else ", GPUs unknown,"
    return f"{word}  {fleet}{gpus} for {_qps(tree['demand']['peak_qps'])} at the peak; {_e(tree)}"


def _e(tree: Tree) -> str:
    """The efficiency in the answer line, called assumed where it was not measured."""
    e, word = tree["efficiency"], tree["planned_on"]["found_by"]
    most = _nodes(e["most_measured_nodes"])
    if len(e["measured"]) < 2 and e["assumed"]:
        return f"E(n) = 1 ASSUMED ({word} on {most} only)"
    value = f"E({tree['answer']['nodes']}) = {e['at_planned']:.3g}"
    return f"{value} ASSUMED ({word} up to {most})" if e["assumed"] else value


def _capacity(tree: Tree) -> list[str]:
    on, answer = tree["planned_on"], tree["answer"]
    planned = f"planned with {BASES[answer['basis']]}, {_planned(tree, answer['planned_qps_per_node'])}"
    seen = f"{on['name']}: {on['found_by']} {_interval(on['qps_per_node'])}"
    if noise := on["sampling_qps_per_node"]:
        seen += f"; sampling noise of this run alone {interval(Estimate(**noise))}"
    lines = [f"{seen}; {planned}", *_service(on["asked"])]
    if lengths := on["lengths"]:
        tokens = f"{lengths['input_tokens']:.0f} tokens in, {lengths['output_tokens']:.0f} out"
        hit = f"prefix hit {100 * lengths['prefix_hit']:.0f} %"
        lines.append(f"lengths: {tokens}, {hit} ({lengths['source']})")
    return [*lines, on["caution"]] if on["caution"] else lines


def _service(asked: Tree) -> list[str]:
    model, hardware, layout = (named(kind, asked[kind]) for kind in ("model", "hardware", "layout"))
    machine = f"{model} on {hardware}, {layout}, {asked['engine']} engine"
    return [f"{machine}, routing {asked['routing']}", f"bounds: {Slo(**asked['slo']).text}"]


def _interval(tree: Tree) -> str:
    q = Estimate(**tree)
    if q.is_bound:
        return f"{span(q)} QPS per node"
    claim = "" if q.certified is None else f", certified {certified(q)}"
    return f"{middle(q)} QPS per node, 95 % interval {interval(q)}{claim}"


def _rules(tree: Tree) -> list[str]:
    rules, care, answer = tree["rules"], tree["care"], tree["answer"]
    peak, k = f"{rules['demand_qps']:g}", care["spare_nodes"]
    per_node = _planned(tree, rules["qps_per_node"])
    normal = f"normal: {peak} <= n x {per_node} x {1 - care['headroom']:g} x E(n){_since(tree)}"
    degraded = f"{_nodes(k)} lost: {peak} <= (n - {k}) x {per_node} x E(n - {k}){_since(tree)}"
    at = ", ".join(f"{BASES[end]}: {nodes:,}" for end, nodes in tree["nodes_at"].items())
    naive = f"{answer['naive_nodes']:,} by naive division, without interval, headroom and spare"
    return [
        f"{normal}: {_nodes(rules['normal_nodes'])}{_binds(answer, 'normal')}",
        *([f"{degraded}: {_nodes(rules['degraded_nodes'])}{_binds(answer, 'degraded')}"] if k else []),
        f"nodes planned with {at}; {naive}",
    ]


def _since(tree: Tree) -> str:
    """The divisor of E(n) if the run was not at the fewest nodes."""
    n = tree["planned_on"]["asked"]["nodes"]
    return "" if n == tree["efficiency"]["fewest_measured_nodes"] else f" / E({n})"


def _binds(answer: Tree, rule: str) -> str:
    return " (binds)" if answer["binding"] in (rule, "both") else ""


def _efficiency(tree: Tree) -> list[str]:
    e = tree["efficiency"]
    if len(e["measured"]) < 2:
        return []
    rows = ", ".join(f"E({p['nodes']}) = {span(Estimate(**p['efficiency']))}" for p in e["measured"])
    word = tree["planned_on"]["found_by"]
    between = "between them linear in ln n"
    return [f"{word} {rows}; {between}; the nodes above take these values, not their intervals"]


def _degraded(tree: Tree) -> list[str]:
    spares = tree["care"]["spare_nodes"] or 1
    return [
        f"with {_nodes(row['lost_nodes'])} lost the others keep {_qps(row['kept_qps'])} within the bounds, "
        f"{100 * row['share_of_peak']:.0f} % of the peak"
        for row in tree["degraded"]
        if row["lost_nodes"] == spares
    ]


def _few_spares(tree: Tree) -> list[str]:
    few, nodes = tree["few_spares"], _nodes(tree["answer"]["nodes"])
    if few is None:
        return []
    known = "assumed; plan.node_availability" if few["assumed"] else "as given"
    return [
        f"{tree['care']['spare_nodes']} spare of {nodes} is FEW: at {_share(few['node_availability'])} "
        f"availability per node ({known}) {few['on_average']:.2g} are down on average and up to "
        f"{few['down_nodes']:,} in {_share(few['target'])} of the time (independent failures only); "
        f"with so many lost the others keep {_qps(few['kept_qps'])}, "
        f"{100 * few['share_of_peak']:.0f} % of the peak"
    ]


def _availability(tree: Tree) -> list[str]:
    one = tree["availability"]
    if one is None:
        return []
    asked = f"{_share(one['target'])} availability at {_share(one['node_availability'])} per node"
    needed = f"{one['needed_nodes']:,} must be up, so {_nodes(one['nodes'])}"
    reached = f"{_share(one['reached'])} (independent failures only)"
    return [f"{asked}: {needed}, which reach {reached}{_binds(tree['answer'], 'availability')}"]


def _day(tree: Tree) -> list[str]:
    day = tree["day"]
    if day is None:
        return []
    lead, least = day["scale_up_minutes"], ""
    ahead = f"each hour's nodes {lead:g} minutes ahead" if lead is not None else ""
    if lead is None:
        ahead = "the time to scale up is unknown: plan.scale_up_minutes"
        least = "at least "
    fixed, autoscaled = f"{day['fixed_node_hours']:,.0f}", f"{least}{day['autoscaled_node_hours']:,.1f}"
    usd = ""
    if "fixed_usd" in day:
        usd = f"; {_usd(day['fixed_usd'])} against {least}{_usd(day['autoscaled_usd'])}"
    return [
        f"nodes by hour, from midnight: {' '.join(map(str, day['nodes']))}",
        "the peak is the busiest hour's mean; what exceeds it within that hour is left to the headroom",
        f"node-hours a day: {fixed} fixed, {autoscaled} autoscaled ({ahead}){usd}",
    ]


def _cost(tree: Tree) -> list[str]:
    cost = tree["cost"]
    if cost is None:
        return ["cost: not computed, for the price of a node has no default: plan.node_hour_usd=USD"]
    full, planned, load = cost["full_use"], cost["planned"], cost["load"]
    use = f"at its {load} of {_qps(cost['served_qps'])}, {100 * planned['use']:.0f} % full"
    head = f"{INDENT}{'per':17}{'at full use':27}{use} [fleets of both ends]"
    known = [(name, full[key], planned[key]) for key, name in DENOMINATORS.items() if full[key]]
    rows = [f"{INDENT}{name:17}{_price(one):27}{_price(other)}" for name, one, other in known]
    price = _usd(full["node_hour_usd"])
    lines = [f"cost of this fleet at {price} per node-hour, the whole of it in each row", head, *rows]
    if len(known) < len(DENOMINATORS):
        lines.append(f"{INDENT}per token unknown, for the lengths are")
    if load == "peak":
        lines.append(f"{INDENT}on average more, by the unknown mean: demand.mean_qps or demand.peak_factor")
    return lines


def _power(tree: Tree) -> list[str]:
    power = tree["power"]
    if power is None:
        return [
            "power: not computed, for no node told its watts, and they have no default: plan.node_watts=W"
        ]
    tokens = power["kwh_per_1m_output_tokens"]
    per_tokens = "unknown" if tokens is None else f"{tokens:.3g} kWh"
    return [
        f"power at {power['node_watts']:,.0f} W per node, {power['source']}, all the time: "
        f"{power['fleet_kw']:,.1f} kW, {power['kwh_per_day']:,.0f} kWh a day; "
        f"at its {power['load']} of {_qps(power['served_qps'])} "
        f"{power['wh_per_request']:.3g} Wh per request, {per_tokens} per 1M output tokens"
    ]


def _price(usd: Tree) -> str:
    return f"${span(Estimate(**usd))}"


def _nodes(count: int) -> str:
    return f"{count:,} node{'' if count == 1 else 's'}"


def _planned(tree: Tree, qps_per_node: float) -> str:
    """The planned rate in the digits of its capacity, a certified one rounded down."""
    q = Estimate(**tree["planned_on"]["qps_per_node"])
    return certified(q) if tree["answer"]["basis"] == "certified" else middle(replace(q, value=qps_per_node))


def _share(share: float) -> str:
    """Per cent, rounded down to two digits of the rest: 99.9994 never becomes 100."""
    digits = 0 if share >= 1 else max(0, math.ceil(-math.log10(1 - share)) - 1)
    scale = 10**digits
    return f"{math.floor(100 * share * scale + 1e-6) / scale:.12g} %"


def _qps(rate: float) -> str:
    return f"{rate:,.0f} QPS" if rate >= 1000 else f"{rate:.4g} QPS"


def _usd(value: float) -> str:
    return f"${value:,.2f}"
