"""The parts that answers of every kind share: the word, the tone, what an answer rests on, where it lies."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from analysis.capacity.rules import REASONS, Check
from analysis.results import summary
from analysis.results.asked import AskedExperiment
from analysis.results.energy import PowerFigures
from analysis.results.figures import LEAD, RequestCounts, WindowRow
from analysis.results.predictions import PredictionVerdict
from analysis.results.verdicts import MATRIX, RunVerdict, StudyVerdict, Verdict
from analysis.rows import failures
from analysis.stats.estimate import UNKNOWN, number, span
from analysis.views.shown import Answer, Fact, Table
from conf.labels import named

LONGER = "search longer: search=standard takes 15 minutes, or raise search.budget_s"
DILATED = (
    "simulated clock x{:g}: seconds are the engine's own; what lies outside it (path_p90) counts its real ms"
)


def answer(
    verdict: Verdict,
    headline: str,
    facts: Iterable[Fact] = (),
    tables: Iterable[Table] = (),
    notes: Iterable[str] = (),
    resume: Path | None = None,
) -> Answer:
    """The answer of a verdict: its reason first, its own facts, then what it rests on and where it lies.

    `resume` is the folder by which an unfinished one goes on; by default its own.
    """
    return Answer(
        word=f"{lead(verdict)}{summary.word(verdict)}",
        tone=tone(verdict),
        headline=headline,
        facts=(*why(verdict), *facts, *rests_on(verdict), *_place(verdict)),
        tables=(*tables, *_checks(verdict)),
        notes=(*notes, *_remedy(verdict, resume)),
    )


def lead(verdict: Verdict) -> str:
    """The word that stands before that of a valid verdict whose certified values are simulated."""
    if not verdict.valid or isinstance(verdict, PredictionVerdict):
        return ""
    if isinstance(verdict, StudyVerdict) and verdict.is_matrix:
        return LEAD if any(cell.simulated for cell in verdict.cells or ()) else ""
    return LEAD if verdict.capacity and verdict.capacity.kind(verdict.asked) else ""


def tone(verdict: Verdict) -> str:
    """`good`, `short` for a valid answer that misses a target, or `bad`."""
    if not verdict.valid:
        return "bad"
    return "good" if verdict.exit_code == summary.EXIT_OK else "short"


def lengths(verdict: Verdict) -> str:
    """The lengths of the requests, which belong beside every rate."""
    return f"; requests of {verdict.asked.tokens}" if verdict.asked.tokens else ""


def rests_on(verdict: Verdict) -> list[Fact]:
    """The question and the evidence."""
    asked = verdict.asked
    model = f"{named('model', asked.model)} on "
    if asked.engine == "external":
        model += f"{named('hardware', asked.hardware)}, "
    load = f"workload {asked.load}, arrivals {asked.arrivals}, seed {asked.seed}"
    # The cells of a matrix differ in what stands here.
    of_first = isinstance(verdict, StudyVerdict) and verdict.study in ("compare", MATRIX)
    whose = f"service of {verdict.names[0]}" if isinstance(verdict, StudyVerdict) and of_first else "service"
    rules = f" (rules of vLLM {asked.vllm_version})" if asked.engine == "simulated" else ""
    facts = [(whose, f"{model}{asked.engine} engine{rules}, {load}")]
    facts += [("kernels", line.removeprefix("kernels: ")) for line in asked.kernels]
    if label := summary.engine_label(verdict):
        facts.append(("engine", label))
    if asked.time_scale != 1 and verdict.clock != "virtual":
        facts.append(("clock", DILATED.format(asked.time_scale)))
    if asked.outside and not isinstance(verdict, PredictionVerdict):
        facts.append(("assumed", "; ".join(asked.outside)))
    if not isinstance(verdict, PredictionVerdict):
        facts += _evidence(verdict.evidence, verdict.requests)
    if isinstance(verdict, RunVerdict):
        facts += session_facts(asked, verdict.windows)
        facts += power_facts(asked, verdict.power)
        if verdict.prediction:
            predicted, how = verdict.prediction.qps_per_node, verdict.prediction.how
            facts.append(("predicted before", f"{span(predicted)} QPS per node ({how})"))
        if verdict.unreadable:
            facts.append(("kept aside", f"what could not be read: {', '.join(verdict.unreadable)}"))
    return facts


def _evidence(evidence: str, counts: RequestCounts | None) -> list[Fact]:
    if counts is None:
        return [("evidence", evidence)] if evidence else []
    states = ", ".join(f"{count} {status}" for status, count in counts.by_status.items()) or "none"
    rows = f"{counts.rows} rows of {counts.planned} planned requests ({states})"
    failed = failures.line(counts.by_failure, counts.rows)
    return [
        ("evidence", f"{evidence}; {rows}"),
        *([("failed", failed.removeprefix("failed "))] if failed else []),
    ]


def why(verdict: Verdict) -> list[Fact]:
    """The reason of a verdict, with the meaning of its code if it has one."""
    code, _, rest = verdict.reason.partition(": ")
    if code in REASONS:
        known = REASONS[code]
        return [("why", f"{known.cause.rstrip('.')} ({code}): {rest or known.remedy}")]
    return [("why", verdict.reason)] if verdict.reason else []


def _place(verdict: Verdict) -> list[Fact]:
    if isinstance(verdict, PredictionVerdict):
        return []
    places = ("run folder", verdict.folder), ("report", verdict.report)
    return [(name, place) for name, place in places if place]


def _checks(verdict: Verdict) -> list[Table]:
    checks = verdict.checks if isinstance(verdict, RunVerdict) else None
    known = [check for check in checks or () if check.passed is not None]
    return [checks_table(known)] if known else []


def checks_table(checks: Sequence[Check]) -> Table:
    """Checks with their worst figures, bounds and outcomes; one without a reason is a note."""
    rows = tuple((check.name, _figure(check), _bound(check), outcome(check)) for check in checks)
    return Table("", ("check", "worst figure", "bound", "state"), rows, state=3)


def outcome(check: Check) -> str:
    """The outcome of a check: ok, FAILED, note (it decides nothing) or unknown."""
    if check.passed is None:
        return UNKNOWN
    return "ok" if check.passed else "FAILED" if check.reason else "note"


def against(check: Check) -> str:
    """A check with its worst figure and its bound."""
    return f"{check.name} {_figure(check)}, bound {_bound(check)}"


def _figure(check: Check) -> str:
    return f"{number(check.value, 3)} {check.unit}".strip()


def _bound(check: Check) -> str:
    return f"{'>=' if check.least else '<='} {number(check.bound, 3)} {check.unit}".strip()


def _remedy(verdict: Verdict, resume: Path | None) -> list[str]:
    """How to go on."""
    if isinstance(verdict, PredictionVerdict):
        return []
    goes_on = isinstance(verdict, StudyVerdict) or verdict.verb == "sweep"
    if verdict.folder and goes_on and summary.resumable(verdict):
        return [f"to go on: python -m loadgen resume {resume or verdict.folder}"]
    capacity = verdict.capacity
    if verdict.valid and capacity and capacity.claimed.is_bound and not capacity.queue_grew:
        return [LONGER]
    return [verdict.remedy] if isinstance(verdict, StudyVerdict) and verdict.remedy else []


REAL = ("vllm", "external")
"""Engines of whose service a reader expects to see the power."""


def power_facts(asked: AskedExperiment, power: PowerFigures | None) -> list[Fact]:
    """The power of a node near the capacity and a request's share of it; none if the run did not ask."""
    if power is None or (power.unknown and asked.engine not in REAL):
        return []
    quoted = power.quoted
    if quoted is None:
        return [("power", f"unknown: {power.unknown}")]
    idle = "idle share unknown"
    if quoted.idle_share is not None and power.idle_watts_per_node is not None:
        idle = f"{power.idle_watts_per_node:,.0f} W idle, {quoted.idle_share:.0%} of it"
    gpus = sum(node.gpus_told for node in power.nodes)
    whose = f"{power.of}, {gpus} GPUs of {len(power.nodes)} node(s)"
    tokens = (
        f"{number(quoted.kwh_per_1m_input_tokens, 3)} kWh per 1M input tokens, "
        f"{number(quoted.kwh_per_1m_output_tokens, 3)} per 1M output tokens"
    )
    return [
        (
            "power",
            f"{quoted.watts_per_node:,.0f} W per node ({whose}) at {number(quoted.rate_qps_per_node)} QPS per"
            f" node, {idle}",
        ),
        ("energy", f"{number(quoted.wh_per_request, 3)} Wh per request, {tokens}"),
    ]


def session_facts(asked: AskedExperiment, windows: Sequence[WindowRow]) -> list[Fact]:
    """Hit rate, replicas per session and the busiest replica; none without sessions or conversations."""
    if not (asked.sessions or asked.conversations):
        return []
    used = [window for window in windows if window["valid"]]
    names = ("prefix_hit", "replicas_per_session", "max_over_mean_share")
    hit, met, share = (number(_mean(used, name), 3) for name in names)
    who = f"{asked.sessions} sessions" if asked.sessions else f"{asked.conversations} conversations"
    how = f"routing {asked.routing} by {asked.data_path or 'unknown'}"
    words = f"hit rate {hit}, {met} replicas per session, busiest replica {share} of the mean"
    return [(f"{who}, {how}", words), *_blocked(used)]


def _blocked(windows: Sequence[WindowRow]) -> list[Fact]:
    """The share of turns that waited for the turn before, if any did."""
    longest = max((window.get("turn_blocked_max_ms") or 0.0 for window in windows), default=0.0)
    if not longest:
        return []
    share = _mean(windows, "turns_blocked") or 0.0
    words = f"{share:.1%} of the turns were due before the answer before had ended; longest {longest:.0f} ms"
    return [("blocked", words)]


def _mean(windows: Sequence[WindowRow], name: str) -> float | None:
    """Mean over windows, each as heavy as its requests; None if any of them does not know it."""
    values = [window.get(name) for window in windows]
    if not values or any(value is None for value in values):
        return None
    weights = [window["requests"] for window in windows]
    return float(np.average(np.array(values, dtype=np.float64), weights=weights))
