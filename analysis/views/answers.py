"""The answer of any verdict, whole or brief, and of a folder."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from analysis.capacity.rules import REASONS, Check
from analysis.results import studies, summary
from analysis.results.energy import PowerFigures
from analysis.results.experiment_facts import ExperimentFacts, named
from analysis.results.figures import LEAD, RequestCounts, WindowRow
from analysis.results.predictions import PredictionVerdict
from analysis.results.runs import Run, load_run
from analysis.results.verdicts import MATRIX, RunVerdict, StudyVerdict, Verdict
from analysis.rows import failures
from analysis.stats.estimate import UNKNOWN, certified, interval, middle, number, span
from analysis.views import prediction, rates, study
from analysis.views.shown import Answer, Fact, Table

LONGER = "search longer: search=standard takes 15 minutes, or raise search.budget_s"
DILATED = (
    "simulated clock x{:g}: seconds are the engine's own; what lies outside it (path_p90) counts its real ms"
)
REAL = ("vllm", "external")
"""Engines of whose service a reader expects to see the power."""
BRIEF = ("service", "clock", "failed")
"""Facts about what an answer rests on that a planner needs."""
CHECK_TONES = {"ok": "ok", "FAILED": "failed", "note": "note", UNKNOWN: "unknown"}
"""States of a check with the tone of its row; a note decides nothing."""


def answer(verdict: Verdict, resume: Path | None = None) -> Answer:
    """The answer of a verdict: its reason first, its own facts, then what it rests on and where it lies.

    `resume` is the folder by which an unfinished one goes on; by default its own.
    """
    simulated = isinstance(verdict, StudyVerdict) and any(cell.simulated for cell in verdict.cells or ())
    if verdict.capacity and not isinstance(verdict, PredictionVerdict):
        simulated = bool(verdict.capacity.kind(verdict.experiment))
    word = f"{LEAD if simulated and verdict.valid else ''}{summary.word(verdict)}"
    tone = "bad" if not verdict.valid else "good" if verdict.exit_code == summary.EXIT_OK else "short"
    if verdict.progressive:
        return study.ladder_answer(verdict, verdict.progressive, word, tone)
    tables: Sequence[Table]
    notes: list[str] = []
    if isinstance(verdict, PredictionVerdict):
        headline, tables = prediction.headline(verdict), prediction.tables(verdict)
    elif isinstance(verdict, StudyVerdict):
        headline, tables, notes = study.headline(verdict), study.tables(verdict), study.notes(verdict)
    else:
        judged = [check for check in verdict.checks or () if check.passed is not None]
        headline, tables = rates.capacity_headline(verdict), [checks_table(judged)] if judged else []
        if verdict.probe:
            headline = rates.probe_headline(verdict.probe) if verdict.valid else "nothing is concluded"
    facts = (*_why(verdict), *_own_facts(verdict), *_rests_on(verdict), *_places(verdict))
    notes += _remedy(verdict, resume)
    return Answer(word, tone, f"{headline}{_lengths(verdict)}", facts, tuple(tables), tuple(notes))


def brief(verdict: Verdict, resume: Path | None = None) -> Answer:
    """The end of a run in the order of a planner's questions; of anything else the whole answer."""
    whole = answer(verdict, resume)
    if not isinstance(verdict, RunVerdict) or verdict.progressive:
        return whole
    hold = verdict.hold
    facts = (
        *_why(verdict),
        *(_planned(verdict) if verdict.valid else ()),
        *(list(rates.hold_facts(hold))[:1] if hold and (hold.vetoed or not hold.valid) else ()),
        *(rates.probe_facts(verdict.probe) if verdict.probe else ()),
        *(fact for fact in whole.facts if fact[0] in BRIEF),
        *checks_facts(verdict.checks or ()),
        *_places(verdict, is_brief=True),
    )
    tables = (rates.table(verdict.windows, verdict.experiment.slo),) if verdict.windows else ()
    return Answer(whole.word, whole.tone, _brief_headline(verdict, whole), facts, tables, whole.notes)


def of_folder(path: Path, is_brief: bool = False) -> Answer:
    """The answer of a run or a study; of a run that did not end, what can be read."""
    if studies.is_study(path):
        return answer(studies.load_verdict(path))
    run = load_run(path)
    return brief(run.verdict, studies.whole(path)) if is_brief and run.verdict else of_opened(run)


def of_opened(run: Run) -> Answer:
    """The answer of an opened run."""
    return answer(run.verdict, studies.whole(run.path)) if run.verdict else unfinished(run)


def unfinished(run: Run) -> Answer:
    """The answer of a run without a verdict: its requests on record, and the way to go on."""
    rows = run.requests(columns=["status", "error_kind", "phase"])
    facts = [("requests on record", _counts(dict(sorted(summary.status_counts(rows).items()))))]
    if failed := failures.line(failures.kinds(rows), rows.num_rows):
        facts.append(("failed", failed.removeprefix("failed ")))
    facts.append(("events", str(len(run.events()))))
    swept = run.manifest.get("verb") == "sweep"
    go_on = f"to go on: python -m loadgen resume {studies.whole(run.path)}" if swept else "run it again"
    return Answer("UNFINISHED", "bad", f"{run.path} has no sweep.json", tuple(facts), notes=(go_on,))


def _brief_headline(verdict: RunVerdict, whole: Answer) -> str:
    """The rate to plan with and the interval of the capacity; a bound alone is no rate to plan with."""
    capacity = verdict.capacity if verdict.valid else None
    if not capacity or capacity.qps_per_node.certified is None or capacity.claimed.is_bound:
        return whole.headline
    q, kind = capacity.qps_per_node, rates.interval_kind(verdict, capacity)
    planned = f"{certified(q)} QPS per node to plan with (certified)"
    return f"{planned}; capacity {middle(q)}, {kind}95 % interval {interval(q)}{_lengths(verdict)}"


def _lengths(verdict: Verdict) -> str:
    """The lengths of the requests, which belong beside every rate."""
    has_rate = bool(verdict.capacity)
    if not isinstance(verdict, StudyVerdict):
        has_rate |= verdict.probe is not None
    if isinstance(verdict, PredictionVerdict):
        has_rate |= verdict.no_rate
    tokens = verdict.experiment.tokens
    return f"; requests of {tokens}" if tokens and has_rate and verdict.valid else ""


def _why(verdict: Verdict) -> Iterator[Fact]:
    """The reason of a verdict, with the meaning of its code if it has one."""
    code, _, rest = verdict.reason.partition(": ")
    if code in REASONS:
        known = REASONS[code]
        yield "why", f"{known.cause.rstrip('.')} ({code}): {rest or known.remedy}"
    elif verdict.reason:
        yield "why", verdict.reason


def _own_facts(verdict: Verdict) -> Iterator[Fact]:
    if verdict.capacity and verdict.valid:
        yield from rates.capacity_facts(verdict, verdict.capacity)
    if not isinstance(verdict, PredictionVerdict) and verdict.hold:
        yield from rates.hold_facts(verdict.hold)
    if not isinstance(verdict, StudyVerdict) and verdict.probe:
        yield from rates.probe_facts(verdict.probe)
    if isinstance(verdict, PredictionVerdict):
        yield from prediction.facts(verdict)
    if isinstance(verdict, StudyVerdict):
        yield from study.facts(verdict)


def _planned(verdict: RunVerdict) -> Iterator[Fact]:
    if not verdict.capacity:
        return
    yield from rates.bound_facts(verdict, verdict.capacity)
    if verdict.nodes and verdict.nodes.differing:
        yield from rates.node_facts(verdict.nodes)
    if verdict.folder:
        yield "nodes for a demand", f"maxqps plan {verdict.folder} demand.peak_qps=QPS"


def _rests_on(verdict: Verdict) -> Iterator[Fact]:
    experiment = verdict.experiment
    model = f"{named('model', experiment.model)} on "
    if experiment.engine == "external":
        model += f"{named('hardware', experiment.hardware)}, "
    load = f"workload {experiment.load}, arrivals {experiment.arrivals}, seed {experiment.seed}"
    # The cells of a matrix differ in what stands here.
    of_first = isinstance(verdict, StudyVerdict) and verdict.study in ("compare", MATRIX)
    whose = f"service of {verdict.names[0]}" if isinstance(verdict, StudyVerdict) and of_first else "service"
    rules = f" (rules of vLLM {experiment.vllm_version})" if experiment.engine == "simulated" else ""
    yield whose, f"{model}{experiment.engine} engine{rules}, {load}"
    for line in experiment.kernels:
        yield "kernels", line.removeprefix("kernels: ")
    if label := summary.engine_label(verdict):
        yield "engine", label
    if experiment.time_scale != 1 and verdict.clock != "virtual":
        yield "clock", DILATED.format(experiment.time_scale)
    if isinstance(verdict, PredictionVerdict):
        return
    if experiment.outside:
        yield "assumed", "; ".join(experiment.outside)
    yield from _evidence(verdict.evidence, verdict.requests)
    if isinstance(verdict, StudyVerdict):
        return
    yield from session_facts(experiment, verdict.windows)
    yield from power_facts(experiment, verdict.power)
    if verdict.prediction:
        predicted, how = verdict.prediction.qps_per_node, verdict.prediction.how
        yield "predicted before", f"{span(predicted)} QPS per node ({how})"
    if verdict.unreadable:
        yield "kept aside", f"what could not be read: {', '.join(verdict.unreadable)}"


def _evidence(evidence: str, counts: RequestCounts | None) -> Iterator[Fact]:
    if counts:
        rows = f"{counts.rows} rows of {counts.planned} planned requests ({_counts(counts.by_status)})"
        yield "evidence", f"{evidence}; {rows}"
        if failed := failures.line(counts.by_failure, counts.rows):
            yield "failed", failed.removeprefix("failed ")
    elif evidence:
        yield "evidence", evidence


def _counts(by_status: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in by_status.items()) or "none"


def _places(verdict: Verdict, is_brief: bool = False) -> Iterator[Fact]:
    if isinstance(verdict, PredictionVerdict):
        return
    if verdict.folder:
        yield "run folder", verdict.folder
    if verdict.report:
        yield "report", Path(verdict.report).absolute().as_uri() if is_brief else verdict.report
    if verdict.folder and is_brief:
        yield "all figures", f"maxqps show {verdict.folder} --all"


def _remedy(verdict: Verdict, resume: Path | None) -> list[str]:
    if isinstance(verdict, PredictionVerdict):
        return []
    goes_on = isinstance(verdict, StudyVerdict) or verdict.verb == "sweep"
    if verdict.folder and goes_on and summary.resumable(verdict):
        return [f"to go on: python -m loadgen resume {resume or verdict.folder}"]
    capacity = verdict.capacity
    if verdict.valid and capacity and capacity.claimed.is_bound and not capacity.queue_grew:
        return [LONGER]
    return [verdict.remedy] if isinstance(verdict, StudyVerdict) and verdict.remedy else []


def check_state(check: Check) -> str:
    """One of `CHECK_TONES`: a failed check without a reason is a note, one that does not apply is unknown."""
    if check.passed is None:
        return UNKNOWN
    return "ok" if check.passed else "FAILED" if check.reason else "note"


def check_figures(check: Check, digits: int) -> tuple[str, str]:
    """The worst figure of a check, and its bound."""
    sign = ">=" if check.least else "<="
    worst, bound = (
        UNKNOWN if value is None else f"{number(value, digits)} {check.unit}".strip()
        for value in (check.value, check.bound)
    )
    return worst, f"{sign} {bound}"


def checks_facts(checks: Sequence[Check]) -> Iterator[Fact]:
    """How many checks are ok, the failed ones with their figures, and the names of the notes."""
    states = {check: check_state(check) for check in checks if check.passed is not None}
    if states:
        ok = sum(word == "ok" for word in states.values())
        failed = [
            f"FAILED: {check.name} {', bound '.join(check_figures(check, 3))}"
            for check, word in states.items()
            if word == "FAILED"
        ]
        notes = ", ".join(check.name for check, word in states.items() if word == "note")
        said = [f"{ok} of {len(states)} ok", *failed, f"notes: {notes}" if notes else ""]
        yield "checks", "; ".join(filter(None, said))


def checks_table(checks: Sequence[Check], digits: int = 3) -> Table:
    """A row for every check."""
    states = [check_state(check) for check in checks]
    rows = tuple(
        (check.name, *check_figures(check, digits), word) for check, word in zip(checks, states, strict=True)
    )
    tones = tuple(CHECK_TONES[word] for word in states)
    return Table("", ("check", "worst figure", "bound", "state"), rows, tones=tones, state=3)


def power_facts(experiment: ExperimentFacts, power: PowerFigures | None) -> Iterator[Fact]:
    """The power of a node near the capacity and a request's share of it; none if the run did not ask."""
    if power is None or (power.unknown and experiment.engine not in REAL):
        return
    quoted = power.quoted
    if quoted is None:
        yield "power", f"unknown: {power.unknown}"
        return
    idle = "idle share unknown"
    if quoted.idle_share is not None and power.idle_watts_per_node is not None:
        idle = f"{power.idle_watts_per_node:,.0f} W idle, {quoted.idle_share:.0%} of it"
    gpus = sum(node.gpus_told for node in power.nodes)
    whose = f"{power.of}, {gpus} GPUs of {len(power.nodes)} node(s)"
    rate = f"{number(quoted.rate_qps_per_node)} QPS per node"
    yield "power", f"{quoted.watts_per_node:,.0f} W per node ({whose}) at {rate}, {idle}"
    tokens = (
        f"{number(quoted.kwh_per_1m_input_tokens, 3)} kWh per 1M input tokens, "
        f"{number(quoted.kwh_per_1m_output_tokens, 3)} per 1M output tokens"
    )
    yield "energy", f"{number(quoted.wh_per_request, 3)} Wh per request, {tokens}"


def session_facts(experiment: ExperimentFacts, windows: Sequence[WindowRow]) -> Iterator[Fact]:
    """Hit rate, replicas per session, the busiest replica, and the turns that waited for the turn before.

    None without sessions or conversations.
    """
    if not (experiment.sessions or experiment.conversations):
        return
    used = [window for window in windows if window["valid"]]
    names = ("prefix_hit", "replicas_per_session", "max_over_mean_share")
    hit, met, share = (number(_mean(used, name), 3) for name in names)
    who = f"{experiment.conversations} conversations"
    who = f"{experiment.sessions} sessions" if experiment.sessions else who
    words = f"hit rate {hit}, {met} replicas per session, busiest replica {share} of the mean"
    yield f"{who}, routing {experiment.routing} by {experiment.data_path or 'unknown'}", words
    if longest := max((window.get("turn_blocked_max_ms") or 0.0 for window in used), default=0.0):
        waited = f"{_mean(used, 'turns_blocked') or 0.0:.1%} of the turns were due before the answer before"
        yield "blocked", f"{waited} had ended; longest {longest:.0f} ms"


def _mean(windows: Sequence[WindowRow], name: str) -> float | None:
    """Mean over windows, each as heavy as its requests; None if any of them does not know it."""
    values = [window.get(name) for window in windows]
    if not values or any(value is None for value in values):
        return None
    weights = [window["requests"] for window in windows]
    return float(np.average(np.array(values, dtype=np.float64), weights=weights))
