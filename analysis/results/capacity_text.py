"""A capacity as the screen shows it: its binding limit, reasons for doubt, and what one replica serves."""

import math

from analysis.results import nodes_text
from analysis.results.types.prediction_verdict import PredictionVerdict
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.shared_figures import AskedExperiment, CapacityFigures, QpsFigures
from analysis.results.types.study_verdict import StudyVerdict

FEW_REQUESTS = 250
"""With fewer requests in all windows an interval of 95 % holds the truth in three of four searches only: of a
server that answers one in ten seconds (docs/search_accuracy.md, M1)."""


def lines(verdict: RunVerdict | StudyVerdict | PredictionVerdict, capacity: CapacityFigures) -> list[str]:
    """The lines below a capacity: limit, doubts, replicas, nodes."""
    asked, limit = verdict.asked, capacity.binding
    held = "nearest to its bound:" if capacity.at_end else "limited by"
    out = [
        f"  {held} p90 {limit.upper()} <= {asked.slo.of(limit):g} ms"
        f" ({_surely(capacity.binding_probability)});"
        f" bounds: p90 TTFT <= {asked.slo.ttft_p90_ms:g} ms, p90 TPOT <= {asked.slo.tpot_p90_ms:g} ms"
    ]
    out += _doubts(capacity, bool(asked.conversations))
    if replica := capacity.qps_per_replica:
        out.append(
            f"  per replica {replica.estimate:.2f} QPS {interval(replica)}:"
            f" {asked.replicas} x {asked.layout} on {asked.nodes} node(s) of {asked.hardware},"
            f" routing {asked.routing}"
        )
    if isinstance(verdict, RunVerdict) and verdict.nodes:
        return out + nodes_text.lines(verdict.nodes)
    return out + _pooled(asked)


def interval(q: QpsFigures) -> str:
    """The ends of an interval in brackets."""
    low, high = ("unknown" if end is None else f"{end:.2f}" for end in (q.low, q.high))
    return "(interval unknown)" if low == high == "unknown" else f"[{low}, {high}]"


def _pooled(asked: AskedExperiment) -> list[str]:
    """A caution where several nodes stand behind one balancer."""
    if asked.nodes == 1 or asked.routing == "per_node":
        return []
    chats = asked.sessions or asked.conversations
    more = "the routing decides what of it" if chats else "more per node than"
    return [f"  pooled service behind one balancer: {more} a node alone would serve"]


def _doubts(capacity: CapacityFigures, chats: bool) -> list[str]:
    """Reasons not to believe the interval of a search; an older run does not know them all."""
    name, out = capacity.binding.upper(), []
    limit = (capacity.limits or {}).get(capacity.binding)
    if limit and limit.slope_unusual:
        out.append(f"  doubtful: the share over the {name} bound hardly follows the load, or jumps with it")
    if limit and 0 < limit.determined < FEW_REQUESTS:
        more = math.ceil(FEW_REQUESTS / limit.determined)
        out.append(
            f"  doubtful: it rests on {limit.determined} requests, fewer than {FEW_REQUESTS}; measure"
            f" {more} times as long (search.budget_s=...)"
        )
    if chats:
        out.append(
            "  leans low: users who stay for longer than a search make it 2 to 3 % too low in the mean"
        )
    return out


def _surely(probability: float | None) -> str:
    return "probability unknown" if probability is None else f"probability {probability:.2f}"
