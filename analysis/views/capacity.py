"""The answer of a search for the capacity: of one run, or of several deployments or repeats together."""

import math

from analysis.capacity.limit_posterior import MUCH
from analysis.capacity.posterior import LEAST_EFFECT
from analysis.results import summary
from analysis.results.asked import AskedExperiment
from analysis.results.figures import ALONE, JOINT, CapacityFigures
from analysis.results.predictions import PredictionVerdict
from analysis.results.verdicts import NodeSpread, RunVerdict, StudyVerdict, Verdict
from analysis.stats.estimate import Estimate, certified, interval, middle, number, span
from analysis.views import rates
from analysis.views.shown import Fact
from conf.specs.bounds import allowed_over, label

PROMISE = "with 95 % probability a node keeps its bounds at this rate"
SAME = 0.02
"""Share of a rate by which a load counts as that rate (our choice)."""
FEW_REQUESTS = 250
"""Fewest requests in all windows; of fewer an interval of 95 % holds the truth in three of four searches, as
of a server that answers one in ten seconds."""
OPEN_WORDS = {
    summary.EXIT_SLO_MISSED: "the bounds are not met even at the lowest rate",
    summary.EXIT_OPEN: "the capacity was not bracketed",
}


def headline(verdict: Verdict) -> str:
    """The capacity in one line, or why there is none."""
    capacity = verdict.capacity
    if not verdict.valid:
        return "no capacity is claimed"
    if not capacity:
        return OPEN_WORDS.get(verdict.exit_code or 0, "no capacity was found")
    claimed = f"{span(capacity.claimed)} QPS per node"
    if capacity.claimed.is_lower_bound:
        return f"{claimed} (too little was seen over the bounds: a lower bound only)"
    if capacity.claimed.is_upper_bound:
        queue = "the queue still grew: " if capacity.queue_grew else ""
        return f"{claimed} ({queue}an upper bound only)"
    q, kind = capacity.qps_per_node, interval_kind(verdict, capacity)
    return f"{middle(q)} QPS per node, {kind}95 % interval {interval(q)}, certified {certified(q)}"


def interval_kind(verdict: Verdict, capacity: CapacityFigures) -> str:
    """The words before the interval of a simulated capacity: whether it holds the constants' uncertainty."""
    kind = "" if isinstance(verdict, PredictionVerdict) else capacity.kind(verdict.asked)
    return {JOINT: "joint ", ALONE: f"{ALONE}: "}.get(kind, "")


def limited_by(asked: AskedExperiment, capacity: CapacityFigures) -> Fact:
    """The bound that is missed first, its probability, and all bounds."""
    name = "nearest to its bound" if capacity.at_end else "limited by"
    probability = capacity.binding_probability
    likely = "unknown" if probability is None else f"{probability:.2f}"
    return name, f"{asked.slo.words(capacity.binding)} (probability {likely}); bounds: {asked.slo.text}"


def facts(verdict: Verdict, capacity: CapacityFigures) -> list[Fact]:
    """What limits a capacity, what its interval holds, reasons to doubt it, replicas and nodes."""
    asked = verdict.asked
    out = [] if isinstance(verdict, PredictionVerdict) else kind_facts(verdict, capacity)
    if not isinstance(verdict, PredictionVerdict):
        out += _quote(capacity)
    out.append(limited_by(asked, capacity))
    out += at_rate(verdict, capacity) if isinstance(verdict, RunVerdict) else []
    out += doubts(capacity, bool(asked.conversations))
    if replica := capacity.qps_per_replica:
        nodes = f"on {asked.nodes} node(s) of {asked.hardware}, routing {asked.routing}"
        replicas = f"{asked.replicas} replica(s), layout {asked.layout}"
        out.append(("per replica", f"{_with_unit(capacity.claimed_of(replica))}: {replicas}, {nodes}"))
    if isinstance(verdict, RunVerdict) and verdict.nodes:
        return out + node_facts(verdict.nodes)
    return out + _pooled(verdict)


def at_rate(verdict: RunVerdict, capacity: CapacityFigures) -> list[Fact]:
    """Latencies and tokens per second of the window whose load is nearest to the rate to plan with."""
    claimed = capacity.claimed
    planned = claimed.value if claimed.certified is None else claimed.certified
    measured = [line for line in verdict.windows if line["kind"] in rates.COUNTED and line["valid"]]
    if not measured:
        return []
    nearest = min(measured, key=lambda line: abs(rates.load(line) - planned))
    load = rates.load(nearest)
    far = "" if abs(load - planned) <= SAME * planned else ", the load nearest to that rate"
    return [(f"at {number(load, 3)} QPS per node{far}", rates.figures(nearest))]


def kind_facts(verdict: RunVerdict | StudyVerdict, capacity: CapacityFigures) -> list[Fact]:
    """What the interval of a simulated capacity holds, and the interval of the sampling noise alone."""
    if not capacity.kind(verdict.asked):
        return []
    noise = f"sampling noise of {'this run' if isinstance(verdict, RunVerdict) else 'these runs'} alone"
    if not capacity.constants:
        return [(noise, capacity.held)]
    q = capacity.claimed_of(capacity.sampling)
    sampled = f"{span(q)} QPS per node" if q.is_bound else f"95 % interval {interval(q)}"
    return [("joint", capacity.held), (noise, sampled)]


def node_facts(spread: NodeSpread) -> list[Fact]:
    """Streams per node, the nodes that differ, and the sd between nodes."""
    count, between = len(spread.effects_pct), spread.between_sd_pct
    streams = f"each of {count} nodes was sent arrivals of its own, no balancer"
    head, sd = ("independent streams per node", streams), f"sd between nodes {span(between)} %"
    if not spread.differing:
        least = f"{100 * LEAST_EFFECT:.0f} %"
        return [head, ("nodes", f"no node is shown to differ from the mean by more than {least} ({sd})")]
    named = [_node(node, spread.effects_pct[node]) for node in spread.differing]
    return [head, *named, ("nodes", f"{sd}: the capacity's interval includes it")]


def _quote(capacity: CapacityFigures) -> list[Fact]:
    q = capacity.qps_per_node
    if q.certified is None or capacity.claimed.is_bound:
        return []
    return [("to quote", f"{certified(q)} QPS per node, the certified rate: {PROMISE}")]


def _with_unit(q: Estimate) -> str:
    return f"{span(q)} QPS" if q.is_bound else f"{middle(q)} QPS {interval(q)}"


def _pooled(verdict: Verdict) -> list[Fact]:
    asked = verdict.asked
    if asked.nodes == 1 or asked.routing == "per_node":
        return []
    chats = asked.sessions or asked.conversations
    more = "the routing decides what of it" if chats else "more per node than"
    return [("pooled service behind one balancer", f"{more} a node alone would serve")]


def doubts(capacity: CapacityFigures, chats: bool) -> list[Fact]:
    """Reasons not to believe the interval of a search."""
    name, out = label(capacity.binding), []
    limit = (capacity.limits or {}).get(capacity.binding)
    if limit and limit.slope_unusual:
        what = "hardly follows the load, or jumps with it"
        if limit.floor >= MUCH * allowed_over(capacity.binding):
            allowed = 100 * allowed_over(capacity.binding)
            what = f"is some {100 * limit.floor:.2g} % at any load, of {allowed:.2g} % allowed"
        out.append(("doubtful", f"the share over the bound on {name} {what}"))
    if limit and 0 < limit.determined < FEW_REQUESTS:
        more = math.ceil(FEW_REQUESTS / limit.determined)
        few = f"it rests on {limit.determined:g} requests, fewer than {FEW_REQUESTS}"
        out.append(("doubtful", f"{few}; measure {more} times as long (search.budget_s=...)"))
    if chats:
        out.append(("biased 2 to 3 % low", "users stay for longer than a search"))
    return out


def _node(node: int, effect: Estimate) -> Fact:
    side, sign = ("below", -1) if effect.value < 0 else ("above", 1)
    low, high = sorted(sign * (end or 0.0) for end in effect.ends)
    away = Estimate(abs(effect.value), low, high)
    return f"node {node}", f"{middle(away)} % {side} the mean {interval(away)}"
