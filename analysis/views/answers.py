"""One answer for any verdict, and the screen of a folder."""

from pathlib import Path

from analysis.results import studies, summary
from analysis.results.predictions import PredictionVerdict
from analysis.results.runs import Run, load_run
from analysis.results.verdicts import RunVerdict, StudyVerdict, Verdict
from analysis.rows import failures
from analysis.views import capacity, ladder, prediction, probe, quality, study
from analysis.views.shown import Answer, Fact
from analysis.views.verdict import answer as answered
from analysis.views.verdict import lengths


def answer(verdict: Verdict, resume: Path | None = None) -> Answer:
    """The answer of a verdict; `resume` is the folder by which an unfinished one goes on."""
    if verdict.progressive:
        return ladder.answer(verdict, verdict.progressive)
    if isinstance(verdict, PredictionVerdict):
        return prediction.answer(verdict)
    return of_run(verdict, resume) if isinstance(verdict, RunVerdict) else of_study(verdict, resume)


def of_run(verdict: RunVerdict, resume: Path | None = None) -> Answer:
    """The answer of a sweep, a probe, a required rate, or a run that failed."""
    facts: list[Fact] = []
    if verdict.capacity and verdict.valid:
        facts += capacity.facts(verdict, verdict.capacity)
    if verdict.hold:
        facts += probe.hold_facts(verdict.hold)
    if verdict.probe:
        facts += probe.facts(verdict.probe)
    headline = capacity.headline(verdict)
    if not verdict.valid and verdict.probe:
        headline = "nothing is concluded"
    elif verdict.valid and verdict.probe:
        headline = probe.headline(verdict.probe)
    said = lengths(verdict) if verdict.valid and (verdict.capacity or verdict.probe) else ""
    return answered(verdict, headline + said, facts, resume=resume)


def of_study(verdict: StudyVerdict, resume: Path | None = None) -> Answer:
    """The answer of several runs together."""
    facts: list[Fact] = []
    if verdict.capacity and verdict.valid:
        facts += capacity.facts(verdict, verdict.capacity)
    if verdict.hold:
        facts += probe.hold_facts(verdict.hold)
    facts += study.facts(verdict)
    tables = [study.table(verdict), *(quality.tables(verdict.quality) if verdict.quality else ())]
    notes = study.grid_notes(verdict) if verdict.is_matrix else []
    said = lengths(verdict) if verdict.valid and verdict.capacity else ""
    return answered(verdict, study.headline(verdict) + said, facts, tables, notes, resume=resume)


def of_folder(path: Path) -> Answer:
    """The answer of a run or a study; of a run that did not end, what can be read."""
    if studies.is_study(path):
        return answer(studies.load_verdict(path))
    return of_opened(load_run(path))


def of_opened(run: Run) -> Answer:
    """The answer of an opened run."""
    return answer(run.verdict, studies.whole(run.path)) if run.verdict else unfinished(run)


def unfinished(run: Run) -> Answer:
    """The answer of a run that has no verdict: its requests on record, and the way to go on."""
    rows = run.requests(columns=["status", "error_kind", "phase"])
    counted = summary.status_counts(rows)
    states = ", ".join(f"{count} {status}" for status, count in sorted(counted.items())) or "none"
    facts = [("requests on record", states)]
    if failed := failures.line(failures.kinds(rows), rows.num_rows):
        facts.append(("failed", failed.removeprefix("failed ")))
    facts.append(("events", str(len(run.events()))))
    swept = run.manifest.get("verb") == "sweep"
    go_on = f"to go on: python -m loadgen resume {studies.whole(run.path)}" if swept else "run it again"
    return Answer("UNFINISHED", "bad", f"{run.path} has no sweep.json", tuple(facts), notes=(go_on,))
