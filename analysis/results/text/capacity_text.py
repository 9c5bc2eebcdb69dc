"""A capacity as verdicts state it, and as the screen shows it: its limit, doubts, replicas and nodes."""

import math
from dataclasses import replace

from analysis.capacity.limit_posterior import MUCH
from analysis.capacity.node_effects import LEAST_EFFECT, NodeEffects
from analysis.capacity.posterior import Capacity
from analysis.results import joint
from analysis.results.types.prediction_verdict import PredictionVerdict
from analysis.results.types.run_verdict import NodeSpread, RunVerdict
from analysis.results.types.shared_figures import AskedExperiment, CapacityFigures
from analysis.results.types.study_verdict import StudyVerdict
from analysis.results.types.verdict import Verdict
from analysis.stats.estimate import Estimate, interval, middle, span
from conf.specs.bounds import allowed_over, label

HELD = (
    "the uncertainty of the engine model's constants, and sampling noise; what the model lacks is not in it"
)
MISSING = "what is unknown of the engine model's constants is not in it ({})"
"""What the interval of a simulated capacity holds, and what it lacks."""
FEW_REQUESTS = 250
"""Fewest requests in all windows; of fewer an interval of 95 % holds the truth in three of four searches, as
of a server that answers one in ten seconds."""


def figures(capacity: Capacity, replicas_per_node: float | None) -> CapacityFigures:
    """The figures in QPS per node and, where the replicas are known, per replica."""
    figures = Estimate(capacity.qps_per_node, capacity.low, capacity.high, capacity.certified)
    if capacity.queue_grew:
        figures = replace(figures, low=None, certified=None)
    return CapacityFigures(
        qps_per_node=figures,
        qps_per_replica=None if replicas_per_node is None else figures.per(replicas_per_node),
        interval="95 % (2.5 to 97.5 % quantile of the posterior); certified is its 5 % quantile",
        binding=capacity.binding,
        binding_probability=capacity.binding_probability,
        open_above=capacity.open_above,
        open_below=capacity.open_below,
        queue_grew=capacity.queue_grew,
        windows_used=tuple(capacity.windows),
        limits=dict(capacity.limits),
    )


def lines(verdict: Verdict, capacity: CapacityFigures) -> list[str]:
    """The lines below a capacity: limit, doubts, replicas, nodes."""
    asked, limit = verdict.asked, capacity.binding
    held, sure = "nearest to its bound:" if capacity.at_end else "limited by", capacity.binding_probability
    out = [] if isinstance(verdict, PredictionVerdict) else kind_lines(verdict, capacity)
    out += [
        f"  {held} {asked.slo.words(limit)}"
        f" (probability {'unknown' if sure is None else f'{sure:.2f}'}); bounds: {asked.slo.text}"
    ]
    out += _doubts(capacity, bool(asked.conversations))
    if replica := capacity.qps_per_replica:
        out.append(
            f"  per replica {_per_replica(capacity.claimed_of(replica))}:"
            f" {asked.replicas} replica(s), layout {asked.layout},"
            f" on {asked.nodes} node(s) of {asked.hardware}, routing {asked.routing}"
        )
    if isinstance(verdict, RunVerdict) and verdict.nodes:
        return out + node_lines(verdict.nodes)
    return out + _pooled(asked)


def kind_lines(verdict: RunVerdict | StudyVerdict, capacity: CapacityFigures) -> list[str]:
    """What the interval of a simulated capacity holds, and the interval of the sampling noise alone."""
    if not joint.kind(verdict.asked, capacity):
        return []
    noise = f"  {noise_name(verdict)}"
    if not capacity.constants:
        return [f"{noise}: {held(capacity)}"]
    q = capacity.claimed_of(capacity.sampling)
    sampled = f"{span(q)} QPS per node" if q.is_bound else f"95 % interval {interval(q)}"
    return [f"  joint: {held(capacity)}", f"{noise}: {sampled}"]


def held(capacity: CapacityFigures) -> str:
    """What the interval of a simulated capacity holds, or lacks."""
    return HELD if capacity.constants else MISSING.format(joint.why_unknown(capacity))


def noise_name(verdict: RunVerdict | StudyVerdict) -> str:
    """The label of the interval of sampling noise alone."""
    return f"sampling noise of {'this run' if isinstance(verdict, RunVerdict) else 'these runs'} alone"


def node_spread(effects: NodeEffects) -> NodeSpread:
    """The effects in percent of the mean."""
    percent = tuple(effect.times(100) for effect in effects.effects)
    return NodeSpread(effects.between.times(100), percent, effects.differing)


def node_lines(found: NodeSpread) -> list[str]:
    """Streams per node, the nodes that differ, and the sd between nodes."""
    count, between = len(found.effects_pct), found.between_sd_pct
    head = f"  independent streams per node: each of {count} nodes was sent arrivals of its own, no balancer"
    sd = f"sd between nodes {span(between)} %"
    if not found.differing:
        least = f"{100 * LEAST_EFFECT:.0f} %"
        return [head, f"  no node is shown to differ from the mean by more than {least} ({sd})"]
    named = [_node_line(node, found.effects_pct[node]) for node in found.differing]
    return [head, *named, f"  {sd}: the capacity's interval includes it"]


def _pooled(asked: AskedExperiment) -> list[str]:
    if asked.nodes == 1 or asked.routing == "per_node":
        return []
    chats = asked.sessions or asked.conversations
    more = "the routing decides what of it" if chats else "more per node than"
    return [f"  pooled service behind one balancer: {more} a node alone would serve"]


def _doubts(capacity: CapacityFigures, chats: bool) -> list[str]:
    """Reasons not to believe the interval of a search."""
    name, out = label(capacity.binding), []
    limit = (capacity.limits or {}).get(capacity.binding)
    if limit and limit.slope_unusual:
        what = "hardly follows the load, or jumps with it"
        if limit.floor >= MUCH * allowed_over(capacity.binding):
            allowed = 100 * allowed_over(capacity.binding)
            what = f"is some {100 * limit.floor:.2g} % at any load, of {allowed:.2g} % allowed"
        out.append(f"  doubtful: the share over the bound on {name} {what}")
    if limit and 0 < limit.determined < FEW_REQUESTS:
        more = math.ceil(FEW_REQUESTS / limit.determined)
        out.append(
            f"  doubtful: it rests on {limit.determined:g} requests, fewer than {FEW_REQUESTS}; measure"
            f" {more} times as long (search.budget_s=...)"
        )
    if chats:
        out.append(
            "  leans low: users who stay for longer than a search make it 2 to 3 % too low in the mean"
        )
    return out


def _per_replica(q: Estimate) -> str:
    return f"{span(q)} QPS" if q.is_bound else f"{middle(q)} QPS {interval(q)}"


def _node_line(node: int, effect: Estimate) -> str:
    side, sign = ("below", -1) if effect.value < 0 else ("above", 1)
    low, high = sorted(sign * (end or 0.0) for end in effect.ends)
    away = Estimate(abs(effect.value), low, high)
    return f"  node {node} is {middle(away)} % {side} the mean {interval(away)}"
