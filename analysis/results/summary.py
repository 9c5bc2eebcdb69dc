"""What a run concluded: the tree of sweep.json, and the same tree as a screen of text.

Knows what a planner must read and in which order; computes nothing but sums of counts. The verdict
stands above the number, and every number carries its unit and its evidence.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.capacity import node_effects, paired_ratio
from analysis.capacity.posterior import Capacity
from analysis.capacity.validity import Verdict
from analysis.results import (
    engine_agreement,
    matrix_table,
    prediction_text,
    published_ladder,
    replay_text,
    studies,
)
from analysis.results.locations import KNOWN
from analysis.results.runs import Run
from analysis.rows import routing_spread
from conf import kernels
from conf.constants import fingerprint
from conf.specs.bounds import LIMITS, column
from conf.specs.experiment import EmulatedEngine, Experiment

SCHEMA_VERSION = KNOWN
EXIT_OK = 0
EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_SLO_MISSED = 3
EXIT_VOID = 4
EXIT_TARGET = 5
EXIT_OPEN = 6
EXIT_INTERRUPTED = 130

RESUMABLE = (EXIT_INTERNAL, EXIT_VOID, EXIT_TARGET, EXIT_INTERRUPTED)
"""Ends of a sweep after which `resume` may still reach a result."""

OPEN_WORDS = {
    EXIT_SLO_MISSED: "the bounds are not met even at the lowest rate",
    EXIT_OPEN: "the capacity was not bracketed",
}
SIMULATED = (
    "a simulated engine: the interval is this run's sampling noise; how far its step times may be off, and "
    "what they rest on, `predict` says"
)
EMULATED = (
    "emulated: vLLM {} itself on GPUs that do not exist; step times are the simulated engine's "
    "(constants {}); how far they may be off, and what they rest on, `predict` says"
)
ON_CPU = "a functional test: a tiny model on a CPU, which says nothing about a GPU"

DILATED = (
    "engine.time_scale={:g}: seconds are the engine's own; what lies outside it (path_p90) counts its real ms"
)

Tree = dict[str, Any]
FEW_REQUESTS = 250
"""With fewer requests in all windows an interval of 95 % holds the truth in three of four searches only: of a
server that answers one in ten seconds (docs/search_accuracy.md, M1)."""


def resumable(tree: Mapping[str, Any]) -> bool:
    """True of a sweep or a study that `resume` may still bring to a result; a veto is final."""
    if tree.get("study") == matrix_table.KIND:
        return any(map(resumable, tree["cells"]))
    vetoed = (tree.get("hold") or {}).get("vetoed", False)
    return tree["exit_code"] in (None, *RESUMABLE) and not vetoed


def describe(experiment: Experiment) -> Tree:
    """What was asked, as far as it belongs beside the answer."""
    return {
        "engine": experiment.engine.kind,
        **_emulated(experiment),
        "model": experiment.model.name,
        "hardware": experiment.hardware.name,
        "cluster": experiment.cluster.name,
        "layout": experiment.layout.name,
        "routing": experiment.routing.name,
        "data_path": experiment.routing.data_path,
        "sessions": experiment.workload.sessions,
        "conversations": _conversations(experiment),
        "workload": experiment.workload.name,
        "arrivals": _arrivals(experiment),
        "search": experiment.search.name,
        "nodes": experiment.cluster.nodes,
        "replicas": experiment.replicas,
        "slo": {bound.column: bound.ms for bound in experiment.slo.bounds},
        "seed": experiment.seed,
        "time_scale": experiment.time_scale,
        "kernels": kernels.words(experiment),
    }


def _emulated(experiment: Experiment) -> Tree:
    """Whose scheduler, and whose step times, an emulated vLLM has."""
    if not isinstance(experiment.engine, EmulatedEngine):
        return {}
    constants = fingerprint(experiment.model, experiment.hardware)
    return {"vllm_version": experiment.engine.vllm_version, "constants": constants}


def _conversations(experiment: Experiment) -> str:
    """How the histories of chats are cut; empty without conversations."""
    talks = experiment.workload.conversations
    return "" if talks is None else talks.truncation.replace("_", "-")


def _arrivals(experiment: Experiment) -> str:
    """The process that requests come by, in words."""
    arrivals, trace = experiment.workload.arrivals, experiment.workload.trace
    if experiment.concurrency:
        return f"closed loop, {experiment.concurrency} in flight"
    if arrivals.kind == "vllm_bench":
        uneven = "" if arrivals.burstiness == 1 else f", burstiness {arrivals.burstiness:g}"
        return f"those of vllm bench serve{uneven}"
    if arrivals.kind == "gamma":
        return f"gamma, burstiness {arrivals.burstiness:g}"
    return f"trace {trace}" if arrivals.kind == "trace" else arrivals.kind


def capacity_tree(capacity: Capacity, replicas_per_node: float | None) -> Tree:
    """The posterior in QPS per node and, where that is known, per replica, with what it rests on."""
    figures = {
        "estimate": capacity.qps_per_node,
        "low": capacity.low,
        "high": capacity.high,
        "certified": capacity.certified,
    }
    return {
        **studies.per_node_and_replica(figures, replicas_per_node),
        "interval": "95 % (2.5 to 97.5 % quantile of the posterior); certified is its 5 % quantile",
        "binding": capacity.binding,
        "binding_probability": capacity.binding_probability,
        "open_above": capacity.open_above,
        "open_below": capacity.open_below,
        "dwells_used": list(capacity.dwells),
        "limits": {limit: asdict(getattr(capacity, limit)) for limit in LIMITS},
    }


def worst_checks(verdicts: Sequence[Verdict]) -> list[Tree]:
    """Of each check the worst figure over the windows, failed ones first among equals."""
    worst: dict[str, Tree] = {}
    for verdict in verdicts:
        for check in verdict.checks:
            row = asdict(check)
            known = worst.setdefault(check.name, row)
            rank = {False: 2, None: 0, True: 1}
            beyond = (rank[row["passed"]], _distance(row)) > (rank[known["passed"]], _distance(known))
            if beyond:
                worst[check.name] = row
    return list(worst.values())


def text(tree: Mapping[str, Any], resume: Path | None = None) -> str:
    """The screen that `sweep`, `predict` and `analysis show` print.

    `resume` is the folder by which an unfinished one goes on; by default its own.
    """
    if tree.get("progressive"):
        return published_ladder.text(tree)
    lines = [f"{_headline(tree)}", f"  {tree['reason']}" if tree.get("reason") else ""]
    if tree.get("capacity") and tree["valid"]:
        lines += _capacity_lines(tree)
    if tree.get("verify"):
        lines += [engine_agreement.line(one) for one in tree["verify"]["comparisons"]]
    if tree.get("hold"):
        lines += _hold_lines(tree)
    if tree.get("probe"):
        lines += _probe_lines(tree)
    if tree.get("replay"):
        lines += replay_text.lines(tree)
    if tree.get("forecast"):
        lines += prediction_text.lines(tree)
    if tree.get("ratio"):
        lines += paired_ratio.lines(tree)
    if tree.get("study"):
        lines += studies.lines(tree)
    lines += _evidence_lines(tree)
    if tree.get("folder") and resumable(tree) and (tree.get("study") or tree.get("verb") == "sweep"):
        lines.append(f"  to go on: python -m loadgen resume {resume or tree['folder']}")
    return "\n".join(line for line in lines if line)


def status_counts(rows: pa.Table) -> Counter[str]:
    """Request rows by status; what the search took back before its due time stands apart."""
    states = zip(rows["status"].to_pylist(), rows["phase"].to_pylist(), strict=True)
    return Counter("retracted" if phase == "retracted" else status for status, phase in states)


def unfinished(run: Run) -> str:
    """What can be read of a run that has no conclusion."""
    states = status_counts(run.requests(columns=["status", "phase"]))
    counted = ", ".join(f"{count} {status}" for status, count in sorted(states.items())) or "none"
    lines = [
        f"UNFINISHED  {run.path} has no sweep.json",
        f"  requests: {counted}",
        f"  events: {len(run.events())}",
    ]
    if run.manifest.get("verb") == "sweep":
        lines.append(f"  to go on: python -m loadgen resume {studies.whole(run.path)}")
    return "\n".join(lines)


def _headline(tree: Mapping[str, Any]) -> str:
    said = word(tree)
    capacity, probe = tree.get("capacity"), tree.get("probe")
    if tree.get("study") == matrix_table.KIND:
        return f"{said}  {matrix_table.headline(tree)}"
    if not tree["valid"]:
        return f"{said}  no capacity is claimed"
    if tree.get("ratio"):
        return f"{said}  {paired_ratio.headline(tree['ratio'])}"
    if tree.get("study") == "compare":
        return f"{said}  no ratio was shown"
    if tree.get("study") == "recipe":
        return f"{said}  {tree['evidence']}: python -m analysis calibrate {tree['folder']} --out FILE"
    if tree.get("verify"):
        return f"{said}  {_probe_load(probe or {})} through vLLM: {engine_agreement.headline(tree['verify'])}"
    if tree.get("replay") and probe:
        return f"{said}  {replay_text.headline(tree)}: {probe_verdict(probe)}{replay_text.kept(tree)}"
    if probe:
        return f"{said}  {_probe_load(probe)}: {probe_verdict(probe)}{prediction_text.kept(tree)}"
    if not capacity:
        return f"{said}  {OPEN_WORDS.get(tree['exit_code'], 'no capacity was found')}"
    if tree.get("forecast"):
        return f"{said}  {prediction_text.headline(tree)}"
    q = capacity["qps_per_node"]
    if capacity["open_above"]:
        why = "too little was seen over the bounds: a lower bound only"
        return f"{said}  at least {q['low']:.2f} QPS per node ({why})"
    if capacity["open_below"]:
        return f"{said}  at most {q['high']:.2f} QPS per node (an upper bound only)"
    interval = f"95 % interval [{q['low']:.2f}, {q['high']:.2f}]"
    return f"{said}  {q['estimate']:.2f} QPS per node, {interval}, certified {q['certified']:.2f}"


def word(tree: Mapping[str, Any]) -> str:
    """The one word above everything else."""
    if tree["exit_code"] is None:
        return "UNFINISHED"
    if tree.get("study") == matrix_table.KIND and tree["valid"]:  # what one cell lacks, others have
        return "VALID"
    failed = {EXIT_INTERRUPTED: "INTERRUPTED", EXIT_TARGET: "NO RESULT", EXIT_INTERNAL: "FAILED"}
    if tree["exit_code"] in failed:
        return failed[tree["exit_code"]]
    if tree.get("clock") == "virtual":
        return "PREDICTED" if tree["valid"] else "VOID"
    return "VALID" if tree["valid"] else "VOID"


def _probe_load(probe: Mapping[str, Any]) -> str:
    """What was offered. A closed loop throttles its own load, so that what it shows is no capacity."""
    if probe.get("loop") == "closed":
        rate = f"{probe['rate_qps_per_node']:.3g} requests/s per node"
        return f"closed loop, {probe['concurrency']} in flight, {rate} (not a capacity)"
    load = f"{probe['rate_qps_per_node']:.4g} QPS per node"
    return f"mean {load}, {probe['offered']}" if probe.get("varies") else load


def probe_verdict(probe: Mapping[str, Any]) -> str:
    """What one load shows; a p90 that nobody knows is not within its bound."""
    if required := probe.get("required"):
        return str(required["verdict"])
    missed = [limit.upper() for limit in LIMITS if probe[limit]["passed"] is False]
    if missed:
        return f"p90 {' and '.join(missed)} over the bound"
    unknown = [limit.upper() for limit in LIMITS if probe[limit]["passed"] is None]
    if not unknown:
        return "within the bounds"
    kept = [f"p90 {limit.upper()} within its bound" for limit in LIMITS if probe[limit]["passed"]]
    return ", ".join([*kept, f"p90 {' and '.join(unknown)} unknown or not applicable"])


def _capacity_lines(tree: Mapping[str, Any]) -> list[str]:
    capacity, asked = tree["capacity"], tree["asked"]
    replica, bounds = capacity["qps_per_replica"], asked["slo"]
    limit = capacity["binding"]
    held = "nearest to its bound:" if capacity.get("at_end") else "limited by"
    lines = [
        f"  {held} p90 {limit.upper()} <= {bounds[column(limit)]:g} ms"
        f" ({_surely(capacity['binding_probability'])});"
        f" bounds: p90 TTFT <= {bounds['ttft_p90_ms']:g} ms, p90 TPOT <= {bounds['tpot_p90_ms']:g} ms"
    ]
    lines += _doubts(capacity, bool(asked.get("conversations")))
    if replica:
        lines.append(
            f"  per replica {replica['estimate']:.2f} QPS {prediction_text.interval(replica)}:"
            f" {asked['replicas']} x {asked['layout']} on {asked['nodes']} node(s) of {asked['hardware']},"
            f" routing {asked['routing']}"
        )
    if tree.get("nodes"):
        lines += node_effects.lines(tree["nodes"])
    elif asked["nodes"] > 1 and asked["routing"] != "per_node":
        chats = asked.get("sessions") or asked.get("conversations")
        more = "the routing decides what of it" if chats else "more per node than"
        lines.append(f"  pooled service behind one balancer: {more} a node alone would serve")
    return lines


def _doubts(capacity: Mapping[str, Any], chats: bool) -> list[str]:
    """Reasons not to believe the interval of a search; an older run does not know them all."""
    name = capacity["binding"].upper()
    limit = capacity.get("limits", {}).get(capacity["binding"], {})
    lines = []
    if limit.get("slope_unusual"):
        lines.append(f"  doubtful: the share over the {name} bound hardly follows the load, or jumps with it")
    if 0 < limit.get("determined", 0) < FEW_REQUESTS:
        more = math.ceil(FEW_REQUESTS / limit["determined"])
        lines.append(
            f"  doubtful: it rests on {limit['determined']} requests, fewer than {FEW_REQUESTS}; measure"
            f" {more} times as long (search.budget_s=...)"
        )
    if chats:
        lines.append(
            "  leans low: users who stay for longer than a search make it 2 to 3 % too low in the mean"
        )
    return lines


def _surely(probability: float | None) -> str:
    return "probability unknown" if probability is None else f"probability {probability:.2f}"


def _probe_lines(tree: Mapping[str, Any]) -> list[str]:
    probe = tree["probe"]
    return _p90_lines(probe) + [_piece_line(piece) for piece in probe.get("pieces", [])]


def _hold_lines(tree: Mapping[str, Any]) -> list[str]:
    hold = tree["hold"]
    rate = f"{hold['rate_qps_per_node']:.4g} QPS per node"
    if not hold["valid"]:
        return [f"  not confirmed: the hold at the certified {rate} was void ({hold['void_reason']})"]
    word = "vetoes the answer" if hold["vetoed"] else "does not veto the answer"
    shown = f"alone it shows at most {hold['capacity_high_qps_per_node']:.2f} (97.5 %) and {word}"
    return [f"  certified {rate} held for {hold['window_s']:.0f} s: {shown}", *_p90_lines(hold)]


def _p90_lines(measured: Mapping[str, Any]) -> list[str]:
    """Each p90 with its interval against its bound."""
    lines = []
    for limit in LIMITS:
        figures = measured[limit]
        if figures["passed"] is None:
            lines.append(f"  p90 {limit.upper()} does not apply or is unknown")
            continue
        spread = "interval unknown: needs 100 requests"
        if figures["interval_ms"]:
            spread = prediction_text.spread(figures)
        verdict = "within" if figures["passed"] else "over"
        p90 = f"p90 {limit.upper()} {prediction_text.plain_ms(figures['p90_ms'])} ms"
        lines.append(f"  {p90}, {spread}: {verdict} the bound {figures['bound_ms']:g} ms")
    return lines


def _piece_line(piece: Mapping[str, Any]) -> str:
    span = f"{piece['from_s']:g} to {piece['to_s']:g} s"
    load = f"{piece['requests']} requests, {piece['rate_qps_per_node']:.3g} QPS per node"
    p90s = ", ".join(
        f"p90 {limit.upper()} {prediction_text.plain_ms(piece[limit]['p90_ms'])} ms" for limit in LIMITS
    )
    return f"  {span}: {load}, {p90s}"


def _evidence_lines(tree: Mapping[str, Any]) -> list[str]:
    asked = tree["asked"]
    model = "" if asked["engine"] == "external" else f"{asked['model']} on "
    load = f"workload {asked['workload']}, arrivals {asked.get('arrivals', 'poisson')}, seed {asked['seed']}"
    # The cells of a matrix differ in what stands here.
    first = f"{tree['names'][0]}: " if tree.get("study") == matrix_table.KIND else ""
    lines = [f"  {first}{model}{asked['engine']} engine, {load}"]
    if label := engine_label(tree):
        lines.append(f"  {label}")
    lines += [f"  {line}" for line in asked.get("kernels", [])]
    scale = asked.get("time_scale", 1)
    if scale != 1 and tree.get("clock") != "virtual":
        lines.append(f"  {DILATED.format(scale)}")
    if tree.get("requests"):
        counted = tree["requests"]
        states = ", ".join(f"{count} {status}" for status, count in counted["by_status"].items())
        rows = f"{counted['rows']} rows of {counted['planned']} planned requests ({states or 'none'})"
        lines.append(f"  evidence: {tree['evidence']}; {rows}")
    elif tree.get("evidence"):
        lines.append(f"  evidence: {tree['evidence']}")
    lines += routing_spread.lines(tree)
    lines += [f"  {check_line(check)}" for check in tree.get("checks", []) if check["passed"] is not None]
    if tree.get("prediction"):
        q, how = tree["prediction"]["qps_per_node"], tree["prediction"]["how"]
        lines.append(
            f"  the engine model predicts {q['estimate']:.2f} [{q['low']:.2f}, {q['high']:.2f}] ({how})"
        )
    if tree.get("unreadable"):
        lines.append(f"  not all of it could be read, kept aside: {', '.join(tree['unreadable'])}")
    if tree.get("folder"):
        lines.append(f"  run folder {tree['folder']}")
    if tree.get("report"):
        lines.append(f"  report {tree['report']}")
    return lines


def engine_label(tree: Mapping[str, Any]) -> str:
    """What an engine's figures are good for, where it is not the real one on real hardware."""
    asked = tree["asked"]
    if asked["engine"] == "vllm_emulated":
        return EMULATED.format(asked.get("vllm_version") or "of unknown version", asked.get("constants"))
    if asked["engine"] == "vllm_cpu":
        return ON_CPU
    predicted = tree.get("forecast") or tree.get("replay")
    return SIMULATED if asked["engine"] == "simulated" and not predicted else ""


def check_line(check: Mapping[str, Any]) -> str:
    """A check of a run with its figure, its bound and whether it was kept; a note decides nothing."""
    failed = "FAILED" if check["reason"] else "note"
    state = {True: "ok", False: failed, None: "unknown"}[check["passed"]]
    unit = f" {check['unit']}" if check["unit"] else ""
    # Runs of an earlier version do not say which way a bound holds.
    sign = {True: ">=", False: "<=", None: "bound"}[check.get("least")]
    value, bound = _figure(check["value"]), _figure(check["bound"])
    return f"check {check['name']:<20} {value}{unit} ({sign} {bound}{unit}) {state}"


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _distance(check: Mapping[str, Any]) -> float:
    """How far a figure went towards its bound: of two the larger is the worse."""
    value, bound = check["value"], check["bound"]
    if value is None or bound is None:
        return -math.inf
    return float(bound - value) if check["least"] else abs(float(value))
