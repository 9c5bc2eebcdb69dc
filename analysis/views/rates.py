"""Rates as text: a capacity, each limited quantile at one rate, and every window that was measured."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from analysis.capacity import window_table
from analysis.capacity.posterior import LEAST_EFFECT
from analysis.capacity.share_curves import MUCH
from analysis.results import figures, summary
from analysis.results.figures import ALONE, JOINT, CapacityFigures, HoldFigures, ProbeFigures, WindowRow
from analysis.results.predictions import PredictionVerdict
from analysis.results.verdicts import NodeSpread, RunVerdict, Verdict
from analysis.stats.dispersion import QuantileInterval
from analysis.stats.estimate import Estimate, certified, interval, middle, number, span
from analysis.views.shown import Fact, Table
from conf.specs import bounds
from conf.specs.bounds import LIMITS, Limit, Slo, allowed_over, column, label

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
COUNTED = ("window", "hold")
"""Kinds of windows that are measurements; a ramp step only looks for where to measure."""
PASS, FAIL, VOID, UNKNOWN = "pass", "fail", "void", "unknown"
TITLE = "every rate, in QPS per node; latencies in ms; tokens/s per node"
HEADS = (
    *("offered", "arrived", "TTFT p50", "p90", "p99", "TPOT p50", "p90", "p99"),
    *("tokens/s in", "out", "verdict"),
)


def capacity_headline(verdict: Verdict) -> str:
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
    kind = "" if isinstance(verdict, PredictionVerdict) else capacity.kind(verdict.experiment)
    return {JOINT: "joint ", ALONE: f"{ALONE}: "}.get(kind, "")


def capacity_facts(verdict: Verdict, capacity: CapacityFigures) -> Iterator[Fact]:
    """What a capacity's interval holds, what limits it, reasons to doubt it, replicas and nodes."""
    experiment, q = verdict.experiment, capacity.qps_per_node
    if not isinstance(verdict, PredictionVerdict):
        yield from _noise_facts(verdict, capacity)
        if q.certified is not None and not capacity.claimed.is_bound:
            yield "to quote", f"{certified(q)} QPS per node, the certified rate: {PROMISE}"
    yield from bound_facts(verdict, capacity)
    if capacity.qps_per_replica:
        replica = capacity.claimed_of(capacity.qps_per_replica)
        each = f"{span(replica)} QPS" if replica.is_bound else f"{middle(replica)} QPS {interval(replica)}"
        nodes = f"on {experiment.nodes} node(s) of {experiment.hardware}, routing {experiment.routing}"
        yield "per replica", f"{each}: {experiment.replicas} replica(s), layout {experiment.layout}, {nodes}"
    if isinstance(verdict, RunVerdict) and verdict.nodes:
        yield from node_facts(verdict.nodes)
    elif experiment.nodes > 1 and experiment.routing != "per_node":
        chats = experiment.sessions or experiment.conversations
        more = "the routing decides what of it" if chats else "more per node than"
        yield "pooled service behind one balancer", f"{more} a node alone would serve"


def bound_facts(verdict: Verdict, capacity: CapacityFigures) -> Iterator[Fact]:
    """The bound that is missed first, the figures near the rate to plan with, and reasons to doubt both."""
    slo, probability = verdict.experiment.slo, capacity.binding_probability
    likely = "unknown" if probability is None else f"{probability:.2f}"
    bound = f"{slo.words(capacity.binding)} (probability {likely}); bounds: {slo.text}"
    yield "nearest to its bound" if capacity.at_end else "limited by", bound
    if isinstance(verdict, RunVerdict):
        yield from _at_rate(verdict, capacity.claimed)
    yield from _doubts(capacity)
    if verdict.experiment.conversations:
        yield "biased 2 to 3 % low", "users stay for longer than a search"


def _at_rate(verdict: RunVerdict, claimed: Estimate) -> Iterator[Fact]:
    """Latencies and tokens per second of the window whose load is nearest to the rate to plan with."""
    planned = claimed.value if claimed.certified is None else claimed.certified
    measured = [line for line in verdict.windows if line["kind"] in COUNTED and line["valid"]]
    if not measured:
        return
    nearest = min(measured, key=lambda line: abs(load(line) - planned))
    far = "" if abs(load(nearest) - planned) <= SAME * planned else ", the load nearest to that rate"
    own = [(label(limit), nearest[column(limit)]) for limit in LIMITS]
    others = [(label(bound["bound"]), bound["quantile_ms"]) for bound in nearest.get("bounds") or ()]
    latencies = ", ".join(f"{name} {number(ms, 3)} ms" for name, ms in [*own, *others] if ms is not None)
    rate_in, rate_out = (number(nearest[f"{kind}_token_rate_per_node"], 3) for kind in ("prompt", "output"))
    tokens = f"{rate_in} tokens/s in, {rate_out} out"
    yield f"at {number(load(nearest), 3)} QPS per node{far}", f"{latencies}; {tokens}"


def _noise_facts(verdict: Verdict, capacity: CapacityFigures) -> Iterator[Fact]:
    """What the interval of a simulated capacity holds, and the interval of the sampling noise alone."""
    noise = f"sampling noise of {'this run' if isinstance(verdict, RunVerdict) else 'these runs'} alone"
    kind = capacity.kind(verdict.experiment)
    if kind == ALONE:
        yield noise, capacity.held
    elif kind == JOINT:
        q = capacity.claimed_of(capacity.sampling)
        yield "joint", capacity.held
        yield noise, f"{span(q)} QPS per node" if q.is_bound else f"95 % interval {interval(q)}"


def node_facts(spread: NodeSpread) -> Iterator[Fact]:
    """Streams per node, the nodes that differ, and the sd between nodes."""
    streams = f"each of {len(spread.effects_pct)} nodes was sent arrivals of its own, no balancer"
    yield "independent streams per node", streams
    for node in spread.differing:
        effect = spread.effects_pct[node]
        side, sign = ("below", -1) if effect.value < 0 else ("above", 1)
        low, high = sorted(sign * (end or 0.0) for end in effect.ends)
        away = Estimate(abs(effect.value), low, high)
        yield f"node {node}", f"{middle(away)} % {side} the mean {interval(away)}"
    sd = f"sd between nodes {span(spread.between_sd_pct)} %"
    alike = f"no node is shown to differ from the mean by more than {100 * LEAST_EFFECT:.0f} % ({sd})"
    yield "nodes", f"{sd}: the capacity's interval includes it" if spread.differing else alike


def _doubts(capacity: CapacityFigures) -> Iterator[Fact]:
    limit, allowed = (capacity.limits or {}).get(capacity.binding), allowed_over(capacity.binding)
    if limit and limit.slope_unusual:
        what = "hardly follows the load, or jumps with it"
        if limit.floor >= MUCH * allowed:
            what = f"is some {100 * limit.floor:.2g} % at any load, of {100 * allowed:.2g} % allowed"
        yield "doubtful", f"the share over the bound on {label(capacity.binding)} {what}"
    if limit and 0 < limit.determined < FEW_REQUESTS:
        more = math.ceil(FEW_REQUESTS / limit.determined)
        few = f"it rests on {limit.determined:g} requests, fewer than {FEW_REQUESTS}"
        yield "doubtful", f"{few}; measure {more} times as long (search.budget_s=...)"


def probe_headline(probe: ProbeFigures) -> str:
    """The load that was offered, and the verdict on it.

    A closed loop throttles its own load, so that its rate is no capacity.
    """
    if probe.loop == "closed":
        rate = f"{number(probe.rate_qps_per_node, 3)} requests/s per node"
        offered = f"closed loop, {probe.concurrency} in flight, {rate} (not a capacity)"
    else:
        mean = f"{number(probe.rate_qps_per_node)} QPS per node"
        offered = f"mean {mean}, {probe.offered}" if probe.varies else mean
    return f"{offered}: {probe_outcome(probe)}"


def probe_outcome(probe: ProbeFigures) -> str:
    """The verdict on one load; an unknown quantile is not within its bound."""
    if probe.required:
        return probe.required.verdict
    if probe.missed:
        return f"{' and '.join(map(label, probe.missed))} over the bound"
    if probe.not_shown:
        return f"within the bounds so far, not shown: {probe.not_shown}"
    unknown = [label(limit) for limit, quantile in probe.limits.items() if quantile.passed is None]
    if not unknown:
        short = any(quantile.needs_s for quantile in probe.limits.values())
        return "within the bounds as measured; too short for an interval" if short else "within the bounds"
    kept = [f"{label(limit)} within its bound" for limit, quantile in probe.limits.items() if quantile.passed]
    return ", ".join([*kept, f"{' and '.join(unknown)} unknown or not applicable"])


def probe_facts(probe: ProbeFigures) -> Iterator[Fact]:
    """Each limited quantile against its bound, and the pieces of a profile."""
    yield from _limit_facts(probe)
    for piece in probe.pieces or ():
        offered = f"{piece.requests} requests, {number(piece.rate_qps_per_node, 3)} QPS per node"
        latencies = (f"{label(limit)} {_ms(quantile)}" for limit, quantile in piece.limits.items())
        yield f"{piece.from_s:g} to {piece.to_s:g} s", f"{offered}, {', '.join(latencies)}"


def hold_facts(hold: HoldFigures) -> Iterator[Fact]:
    """The confirmation run at the 5 % quantile of the sampling noise, the certified rate of a real engine."""
    rate = f"{number(hold.rate_qps_per_node)} QPS per node, the 5 % quantile of the sampling noise"
    if not hold.valid:
        yield "not confirmed", f"the hold at {rate}, was void ({hold.void_reason})"
        return
    word = "vetoes the answer" if hold.vetoed else "does not veto the answer"
    shown = f"alone it shows at most {number(hold.capacity_high_qps_per_node)} (97.5 %) and {word}"
    yield f"held for {hold.window_s:.0f} s", f"{rate}: {shown}"
    yield from _limit_facts(hold)


def _limit_facts(measured: figures.RateFigures) -> Iterator[Fact]:
    for limit, quantile in measured.limits.items():
        name = "requests" if bounds.metric_of(limit) == bounds.JOINT else "gaps between tokens"
        yield label(limit) if quantile.share is None else name, _against(limit, quantile)


def _against(limit: Limit, quantile: figures.Quantile) -> str:
    if quantile.passed is None:
        return "does not apply or is unknown"
    if quantile.share is not None:
        least = 100 * bounds.quantile_of(limit)
        kept = "keeps" if quantile.passed else "misses"
        return f"{100 * quantile.share:.1f} % are within the bounds: {kept} the {least:g} % that are required"
    around = f"interval unknown: {unknown_interval(quantile)}"
    if quantile.ms and quantile.has_interval:
        around = f"95 % {interval(quantile.ms)}"
        if quantile.by_constants and quantile.by_noise:
            around += f" (Monte Carlo noise alone {interval(quantile.by_noise)})"
    side = "within" if quantile.passed else "over"
    return f"{_ms(quantile)}, {around}: {side} the bound {quantile.bound_ms:g} ms"


def unknown_interval(quantile: figures.Quantile | QuantileInterval) -> str:
    """The reason why a quantile has no interval, and how much to measure for one."""
    if quantile.needs:
        return f"needs {quantile.needs} requests"
    if not quantile.needs_s:
        return "too few independent stretches, measure longer"
    minutes = math.ceil(quantile.needs_s / 60)
    return f"too few independent stretches, measure some {minutes} minutes"


def _ms(quantile: figures.Quantile) -> str:
    return f"{middle(quantile.ms)} ms" if quantile.ms else UNKNOWN


def table(lines: Sequence[WindowRow], slo: Slo) -> Table:
    """A row for each measured window by the load that arrived."""
    measured = sorted((line for line in lines if line["kind"] in COUNTED), key=load)
    columns = (
        "rate_qps_per_node",
        "work_qps_per_node",
        *(f"{limit}_p{q}_ms" for limit in LIMITS for q in window_table.QUANTILES),
        "prompt_token_rate_per_node",
        "output_token_rate_per_node",
    )
    rows = tuple((*(number(line[name], 3) for name in columns), _verdict(line, slo)) for line in measured)
    tones = tuple("" if line["valid"] else "failed" for line in measured)
    return Table(TITLE, HEADS, rows, tones=tones, state=len(HEADS) - 1)


def _verdict(line: WindowRow, slo: Slo) -> str:
    """The verdict on a window: within the bounds, the bounds that it missed, or the reason why it is void."""
    if not line["valid"]:
        return f"VOID: {line['void_reason']}"
    kept = {bound.limit: _kept(line, bound.limit, float(bound.ms)) for bound in slo.bounds}
    if missed := [label(limit) for limit, is_kept in kept.items() if is_kept is False]:
        return f"over {' and '.join(missed)}"
    return "within" if True in kept.values() else "unknown"


def load(line: WindowRow) -> float:
    """The load that arrived, as QPS per node of mean requests; the offered rate where no row tells it."""
    arrived = line["work_qps_per_node"]
    return float(arrived if arrived is not None and arrived > 0 else line["rate_qps_per_node"])


def outcome(
    line: WindowRow, bounds_ms: Mapping[Limit, float], limits: Collection[Limit] | None = None
) -> str:
    """`void`; `fail` where one of `limits`, by default all, is not kept; `unknown` where none is known; or
    `pass`.

    A p90 of TTFT or TPOT is compared with its bound, of another bound the share over it with what is allowed.
    """
    if not line["valid"]:
        return VOID
    kept = [_kept(line, limit, bounds_ms[limit]) for limit in limits or bounds_ms if limit in bounds_ms]
    if False in kept:
        return FAIL
    return PASS if True in kept else UNKNOWN


def _kept(line: WindowRow, limit: Limit, most_ms: float) -> bool | None:
    if limit in LIMITS:
        p90 = line[column(limit)]
        return None if p90 is None else bool(p90 <= most_ms)
    share = window_table.over_share(line, limit)
    return None if share is None else share <= allowed_over(limit)
