"""Whole pages: of one run, of a study, of several runs side by side, of a plan."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis import figures
from analysis.figures.comparison import Comparison, Nodes
from analysis.figures.exhibit import REPORTED, RunData
from analysis.figures.service import Scaling
from analysis.planning.plan import NoPlan, Plan
from analysis.report import blocks, sections
from analysis.report.blocks import Block, Code, Missing, Page, Section, figure_block, moment, value
from analysis.results import locations, tables
from analysis.results.experiment_facts import ExperimentFacts
from analysis.results.json_border import to_tree
from analysis.results.locations import REPORT
from analysis.results.runs import Run
from analysis.results.studies import Study
from analysis.results.verdicts import MATRIX, RunVerdict
from analysis.views import answers, rates
from analysis.views import plan as plan_view
from analysis.views import study as view
from analysis.views.shown import Answer, Cell, Link, Table
from conf.compose import UNKNOWN

MAIN = ("latency", "search", "client_lag")
"""Figures of a run that shares its page."""
MOST_DRAWN = 8
"""Runs on one page whose figures are drawn, so that it stays near 1 MB (our choice)."""
POOLED_OR_COMPARED = ("deployments", "repeats", "compare", MATRIX)
"""Studies with a figure over all parts."""
RATES = "Every rate in QPS per node, latencies in ms, tokens/s per node (windows.parquet)"


def of_run(run: Run) -> Page:
    """The page of one run, ended or not."""
    verdict, claim, experiment, data = run.verdict, _answer(run), run.experiment, RunData(run, REPORTED)
    shown = [Section(exhibit.section, (figure_block(exhibit, data),)) for exhibit in figures.EXHIBITS]
    shown.append(sections.errors(data))
    every_rate = [rates.table(verdict.windows, verdict.experiment.slo)] if verdict and verdict.windows else []
    tables = *(replace(table, title=RATES) for table in every_rate), sections.percentiles(data)
    main = [replace(section, blocks=(*section.blocks, *tables)) for section in shown[:1]]
    shown += sections.power_sections(verdict.power if verdict else None)
    trust = Section("trust", _checks(verdict))
    body = [*main, trust, *blocks.without_empty(shown[1:]), sections.provenance(run)]
    body.append(sections.definitions(experiment, verdict.capacity if verdict else None))
    heading = _heading(experiment, str(run.manifest.get("verb", "run")))
    return Page(f"{claim.word}: {run.name}", heading, _subtitle(run, experiment), claim, body)


def of_study(study: Study, out: Path) -> Page:
    """The page of a study for the file `out`: its answer, its parts, and the main figures of each."""
    verdict, claim = study.verdict, _answer(study)
    links: dict[str, Cell] = {}
    for name in verdict.names:
        if (report := study.path / name / REPORT).exists():
            away = Path(os.path.relpath(report.resolve(), out.resolve().parent))
            links[name] = Link(name, away.as_posix())
    parts: list[Block] = [replace(view.table(verdict, links), title="Parts of the study (study.json)")]
    if verdict.differs:
        rows = tuple((key, value(ours), value(theirs)) for key, (ours, theirs) in verdict.differs.items())
        parts.append(Table("What differs from A to B", ("key", "A", "B"), rows))
    if verdict.study in POOLED_OR_COMPARED:
        parts.append(figure_block(Comparison, verdict))
    body = [
        Section("parts", tuple(parts)),
        *sections.quality_sections(study),
        Section("trust", ("The checks of each part are in its own report.",)),
        *_beside(study.parts),
        *sections.study_provenance(verdict, study.parts),
        sections.definitions(verdict.experiment, verdict.capacity),
    ]
    heading = _heading(verdict.experiment, verdict.study)
    subtitle = f"Study {study.name}: {len(verdict.names)} runs, kind {verdict.study}"
    return Page(f"{claim.word}: {study.name}", heading, subtitle, claim, body)


def of_runs(runs: Sequence[Run]) -> Page:
    """The page of several runs: capacities in one table, then the main figures of each."""
    title = "Capacity of each run, as far as one is claimed"
    capacities = tables.capacity_table(runs)
    heads = [field.metadata[b"doc"].decode() for field in capacities.schema]
    shown = (
        blocks.across(blocks.arrow_table(title, capacities.rename_columns(heads), "not claimed")),
        *(figure_block(exhibit, runs) for exhibit in (Comparison, Scaling)),
    )
    body = [
        Section("capacities", shown),
        *_beside(runs),
        sections.definitions(runs[0].experiment, None),
    ]
    names = ", ".join(run.name for run in runs)
    changed = [line for run in runs for line in locations.altered(run.path)]
    claim = _altered(changed) if changed else None
    return Page(f"{len(runs)} runs", f"{len(runs)} runs side by side", names, claim, body)


def _beside(runs: Sequence[Run]) -> list[Section]:
    """Runs that share a page, each with its verdict, main figures and the command that repeats it."""
    body = []
    for place, run in enumerate(runs):
        known = run.verdict.checks if run.verdict else None
        trust = [tuple(answers.checks_facts(known))] if known else []
        drawn: list[Block] = [
            Missing("Figures", "left out to keep this page small; each run has its own report")
        ]
        if place < MOST_DRAWN:
            data = RunData(run)
            shared = [exhibit for exhibit in figures.EXHIBITS if exhibit.name in MAIN]
            drawn = [figure_block(exhibit, data, f"{place}-") for exhibit in shared]
        shown = (_answer(run), *trust, *drawn, *sections.origin(run))
        body.append(Section(f"run-{place}", shown, f"Run {run.name}", _subtitle(run, run.experiment)))
    return body


def _checks(verdict: RunVerdict | None) -> tuple[Block, ...]:
    if verdict is None:
        why = "the run has no sweep.json; its windows were not judged once every row was final"
        return (Missing("Checks", why),)
    if verdict.checks:
        return tuple(answers.checks_facts(verdict.checks)), sections.checks_table(
            verdict.checks, verdict.valid
        )
    return (Missing("Checks", "no window was judged"),)


def _answer(opened: Run | Study) -> Answer:
    changed = locations.altered(opened.path)
    return _altered(changed) if changed else opened.answer()


def _altered(differences: Sequence[str]) -> Answer:
    headline = "No capacity is claimed: its files are not as they were written"
    return Answer("ALTERED", "bad", headline, notes=tuple(differences[: locations.MOST_NAMED]))


def _heading(experiment: ExperimentFacts, verb: str) -> str:
    what = {
        "probe": "Probe",
        "compare": "Comparison",
        "quality": "Quality gate",
        "matrix": "Capacity matrix",
        "recipe": "Calibration probes",
    }
    is_unknown = experiment.engine == "external" and experiment.model == UNKNOWN
    service = "an external service" if is_unknown else experiment.model
    return f"{what.get(verb, 'Capacity')} of {service}"


def _subtitle(run: Run, experiment: ExperimentFacts) -> str:
    nodes = f"{experiment.nodes} x {experiment.hardware}, {experiment.layout}"
    if experiment.engine == "external":
        nodes = f"served at {', '.join(run.config.target.urls)}"
    parts = nodes, f"{experiment.engine} engine", f"workload {experiment.load}", f"run {run.name}"
    return ", ".join(part for part in (*parts, moment(run.manifest.get("started_at"))) if part)


UNWRITTEN = "none were asked for; --serve-config FILE.yaml writes them, for a plan on the folder of a run"


def of_plan(plan: Plan | NoPlan) -> Page:
    """The page of a plan, or of its refusal."""
    answer = plan_view.answer(plan)
    if isinstance(plan, NoPlan):
        claim = replace(answer, headline="Nothing is planned", notes=(f"{answer.headline}.",))
        return Page("no plan", "Plan", "The run allows no plan", claim, [])
    on, whole = plan.planned_on, json.dumps(to_tree(plan), indent=1)
    code = Code("The plan as JSON, every figure with its unit", whole, folded=True)
    served: tuple[Block, ...] = (Missing("Ray Serve's settings", UNWRITTEN),)
    if written := plan.into_service:
        where = f"Ray Serve's autoscaling in {written.file}; its comments give each number's reason:"
        served = where, tuple((name, value(setting)) for name, setting in written.autoscaling_config.items())
    body = [
        Section("nodes", (figure_block(Nodes, plan), code)),
        *([Section("cost", answer.tables)] if plan.cost else []),
        Section("service", served),
    ]
    subtitle = f"Planned on {on.name}, {on.found_by}: {on.experiment.load}"
    return Page(f"{answer.word}: {on.name}", "Plan of a service", subtitle, answer, body)
