"""A verdict as a screen of text, the verdict above the number, every number with its unit and evidence."""

from collections import Counter
from pathlib import Path

import pyarrow as pa

from analysis.results import joint, matrix_table, published_ladder, studies
from analysis.results.asked import describe as describe
from analysis.results.checks import check_line
from analysis.results.locations import KNOWN
from analysis.results.runs import Run, load_run
from analysis.results.text import (
    capacity_text,
    power_text,
    prediction_text,
    probe_text,
    quality_text,
    ratio_text,
    replay_text,
    sessions_text,
)
from analysis.results.types.prediction_verdict import PredictionVerdict
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.shared_figures import CapacityFigures, RequestCounts
from analysis.results.types.study_verdict import MatrixCell, StudyVerdict
from analysis.results.types.verdict import Verdict
from analysis.rows import failures
from analysis.stats.estimate import certified, interval, middle, span
from conf.labels import named

SCHEMA_VERSION = KNOWN

EXIT_OK = 0
EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_SLO_MISSED = 3
EXIT_VOID = 4
EXIT_TARGET = 5
EXIT_OPEN = 6
EXIT_DEGRADED = 7
EXIT_INTERRUPTED = 130

RESUMABLE = (EXIT_INTERNAL, EXIT_VOID, EXIT_TARGET, EXIT_INTERRUPTED)
"""Ends of a sweep after which `resume` may still reach a result."""

OPEN_WORDS = {
    EXIT_SLO_MISSED: "the bounds are not met even at the lowest rate",
    EXIT_OPEN: "the capacity was not bracketed",
}
FAILED_WORDS = {EXIT_INTERRUPTED: "INTERRUPTED", EXIT_TARGET: "NO RESULT", EXIT_INTERNAL: "FAILED"}
SIMULATED = "a simulated engine: how far its step times may be off, and what they rest on, `predict` says"
EMULATED = (
    "emulated: vLLM {} itself on GPUs that do not exist; step times are the simulated engine's "
    "(constants {}); how far they may be off, and what they rest on, `predict` says"
)
ON_CPU = "a functional test: a tiny model on a CPU, which says nothing about a GPU"

DILATED = (
    "engine.time_scale={:g}: seconds are the engine's own; what lies outside it (path_p90) counts its real ms"
)


def text(verdict: Verdict, resume: Path | None = None) -> str:
    """The screen that `sweep`, `predict` and `analysis show` print.

    `resume` is the folder by which an unfinished one goes on; by default its own.
    """
    if verdict.progressive:
        return published_ladder.text(verdict, verdict.progressive)
    lines = [headline(verdict), f"  {verdict.reason}" if verdict.reason else ""]
    if verdict.capacity and verdict.valid:
        lines += capacity_text.lines(verdict, verdict.capacity)
    if not isinstance(verdict, PredictionVerdict) and verdict.hold:
        lines += probe_text.hold_lines(verdict.hold)
    if not isinstance(verdict, StudyVerdict) and verdict.probe:
        lines += probe_text.lines(verdict.probe)
    if isinstance(verdict, PredictionVerdict):
        lines += replay_text.lines(verdict) + prediction_text.lines(verdict)
    if isinstance(verdict, StudyVerdict):
        lines += ratio_text.lines(verdict, verdict.ratio) if verdict.ratio else []
        lines += quality_text.lines(verdict, verdict.quality) if verdict.quality else []
        lines += studies.lines(verdict)
    lines += _evidence_lines(verdict)
    if not isinstance(verdict, PredictionVerdict):
        goes_on = isinstance(verdict, StudyVerdict) or verdict.verb == "sweep"
        if verdict.folder and goes_on and resumable(verdict):
            lines.append(f"  to go on: python -m loadgen resume {resume or verdict.folder}")
    return "\n".join(line for line in lines if line)


def resumable(verdict: Verdict | MatrixCell) -> bool:
    """True of a sweep or a study that `resume` may still bring to a result; a veto is final."""
    if isinstance(verdict, PredictionVerdict):
        return False
    if isinstance(verdict, StudyVerdict) and verdict.is_matrix:
        return any(map(resumable, verdict.cells or ()))
    vetoed = verdict.hold is not None and verdict.hold.vetoed
    return verdict.exit_code in (None, *RESUMABLE) and not vetoed


def status_counts(rows: pa.Table) -> Counter[str]:
    """Request rows by status; retracted ones, which the search took back before their due time, apart."""
    states = zip(rows["status"].to_pylist(), rows["phase"].to_pylist(), strict=True)
    return Counter("retracted" if phase == "retracted" else status for status, phase in states)


def concluded(path: Path) -> str:
    """The summary of a run or a study; of a run that did not end, what can be read."""
    if studies.is_study(path):
        return text(studies.load_verdict(path))
    return of_run(load_run(path))


def of_run(run: Run) -> str:
    """The summary of a run; of one that did not end, what can be read."""
    return text(run.verdict, studies.whole(run.path)) if run.verdict else unfinished(run)


def unfinished(run: Run) -> str:
    """The screen of a run that has no verdict."""
    rows = run.requests(columns=["status", "error_kind", "phase"])
    states = status_counts(rows)
    counted = ", ".join(f"{count} {status}" for status, count in sorted(states.items())) or "none"
    lines = [
        f"UNFINISHED  {run.path} has no sweep.json",
        f"  requests: {counted}",
        f"  {failures.line(failures.kinds(rows), rows.num_rows)}",
        f"  events: {len(run.events())}",
    ]
    if run.manifest.get("verb") == "sweep":
        lines.append(f"  to go on: python -m loadgen resume {studies.whole(run.path)}")
    return "\n".join(line for line in lines if line.strip())


def headline(verdict: Verdict) -> str:
    """The first line: the verdict, and the figure or why there is none."""
    said = word(verdict)
    if isinstance(verdict, StudyVerdict) and verdict.is_matrix:
        return f"{lead(verdict)}{said}  {matrix_table.headline(verdict)}"
    if not verdict.valid:
        return f"{said}  no capacity is claimed"
    if isinstance(verdict, StudyVerdict) and (found := _of_study(verdict)):
        return f"{said}  {found}"
    if not isinstance(verdict, StudyVerdict) and (found := _of_probe(verdict)):
        return f"{said}  {found}{_lengths(verdict)}"
    if isinstance(verdict, PredictionVerdict) and verdict.no_rate:
        return f"{said}  no rate keeps the bounds{_lengths(verdict)}"
    if not verdict.capacity:
        return f"{said}  {OPEN_WORDS.get(verdict.exit_code or 0, 'no capacity was found')}"
    if isinstance(verdict, PredictionVerdict) and verdict.forecast:
        return f"{said}  {prediction_text.headline(verdict, verdict.capacity)}{_lengths(verdict)}"
    return f"{lead(verdict)}{said}  {_of_capacity(verdict, verdict.capacity)}{_lengths(verdict)}"


def _lengths(verdict: Verdict) -> str:
    """The lengths of the requests, which belong beside every rate."""
    return f"; requests of {verdict.asked.tokens}" if verdict.asked.tokens else ""


def lead(verdict: Verdict) -> str:
    """The word that stands before that of a valid verdict whose certified values are simulated."""
    if not verdict.valid or isinstance(verdict, PredictionVerdict):
        return ""
    if isinstance(verdict, StudyVerdict) and verdict.is_matrix:
        return matrix_table.lead(verdict)
    return joint.LEAD if verdict.capacity and joint.kind(verdict.asked, verdict.capacity) else ""


def word(verdict: Verdict | None) -> str:
    """The one word above everything else; None is a run that did not end."""
    if verdict is None or verdict.exit_code is None:
        return "UNFINISHED"
    if isinstance(verdict, StudyVerdict) and verdict.quality:
        return verdict.quality.verdict
    if isinstance(verdict, StudyVerdict) and verdict.is_matrix and verdict.valid:
        return "VALID"  # what one cell lacks, others have
    if verdict.exit_code in FAILED_WORDS:
        return FAILED_WORDS[verdict.exit_code]
    good = "PREDICTED" if verdict.clock == "virtual" else "VALID"
    return good if verdict.valid else "VOID"


def engine_label(verdict: Verdict) -> str:
    """The meaning of an engine's figures, where it is not the real one on real hardware."""
    asked = verdict.asked
    if asked.engine == "vllm_emulated":
        return EMULATED.format(asked.vllm_version or "of unknown version", asked.constants)
    if asked.engine == "vllm_cpu":
        return ON_CPU
    predicted = isinstance(verdict, PredictionVerdict) and (verdict.forecast or verdict.replay)
    if asked.engine != "simulated" or predicted:
        return ""
    if isinstance(verdict, StudyVerdict):
        return SIMULATED + ("; the interval of the ratio is sampling noise alone" if verdict.ratio else "")
    return SIMULATED + (
        "" if verdict.capacity or not verdict.valid else "; the intervals are this run's sampling noise alone"
    )


def _of_study(study: StudyVerdict) -> str:
    """The headline of a comparison or of recorded probes; empty of studies that find one capacity."""
    if study.study == "quality" and study.quality:
        return quality_text.headline(study.quality)
    if study.ratio:
        return ratio_text.headline(study.ratio)
    if study.study == "compare":
        return "no ratio was shown"
    if study.study == "recipe":
        return f"{study.evidence}: python -m analysis calibrate {study.folder} --out FILE"
    return ""


def _of_probe(verdict: RunVerdict | PredictionVerdict) -> str:
    """The headline of one rate; empty without one."""
    probe = verdict.probe
    if probe is None:
        return ""
    load, shown = probe_text.load(probe), probe_text.verdict(probe)
    if isinstance(verdict, RunVerdict):
        return f"{load}: {shown}"
    if verdict.replay:
        return f"{replay_text.headline(verdict.replay)}: {shown}{replay_text.kept(verdict.replay)}"
    return f"{load}: {shown}{prediction_text.kept(verdict)}"


def _of_capacity(verdict: Verdict, capacity: CapacityFigures) -> str:
    q = capacity.qps_per_node
    if capacity.open_above:
        why = "too little was seen over the bounds: a lower bound only"
        return f"{span(capacity.claimed)} QPS per node ({why})"
    if capacity.open_below:
        why = "the queue still grew: an upper bound only" if capacity.queue_grew else "an upper bound only"
        return f"{span(capacity.claimed)} QPS per node ({why})"
    kind = joint.kind(verdict.asked, capacity) if lead(verdict) else ""
    before = {joint.JOINT: "joint ", joint.ALONE: f"{joint.ALONE}: "}.get(kind, "")
    return f"{middle(q)} QPS per node, {before}95 % interval {interval(q)}, certified {certified(q)}"


def _evidence_lines(verdict: Verdict) -> list[str]:
    asked = verdict.asked
    model = f"{named('model', asked.model)} on "
    if asked.engine == "external":
        model += f"{named('hardware', asked.hardware)}, "
    load = f"workload {asked.load}, arrivals {asked.arrivals}, seed {asked.seed}"
    # The cells of a matrix differ in what stands here.
    is_matrix = isinstance(verdict, StudyVerdict) and verdict.is_matrix
    first = f"{verdict.names[0]}: " if isinstance(verdict, StudyVerdict) and is_matrix else ""
    lines = [f"{first}{model}{asked.engine} engine, {load}", engine_label(verdict), *asked.kernels]
    if asked.time_scale != 1 and verdict.clock != "virtual":
        lines.append(DILATED.format(asked.time_scale))
    if not isinstance(verdict, PredictionVerdict):
        lines.append(_counted(verdict.evidence, verdict.requests))
        if verdict.requests:
            lines.append(failures.line(verdict.requests.by_failure, verdict.requests.rows))
    out = [f"  {line}" for line in lines if line]
    if isinstance(verdict, RunVerdict):
        out += sessions_text.lines(asked, verdict.windows)
        out += power_text.lines(asked, verdict.power)
        out += [f"  {check_line(check)}" for check in verdict.checks or () if check.passed is not None]
        if verdict.prediction:
            q, how = verdict.prediction.qps_per_node, verdict.prediction.how
            out.append(f"  the engine model predicts {span(q)} ({how})")
        if verdict.unreadable:
            out.append(f"  not all of it could be read, kept aside: {', '.join(verdict.unreadable)}")
    if not isinstance(verdict, PredictionVerdict):
        out += [f"  run folder {verdict.folder}"] if verdict.folder else []
        out += [f"  report {verdict.report}"] if verdict.report else []
    return out


def _counted(evidence: str, counts: RequestCounts | None) -> str:
    if counts is None:
        return f"evidence: {evidence}" if evidence else ""
    states = ", ".join(f"{count} {status}" for status, count in counts.by_status.items())
    return (
        f"evidence: {evidence}; {counts.rows} rows of {counts.planned} planned requests ({states or 'none'})"
    )
