"""Whole pages: of one run, of a study, of several runs side by side, of a plan."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis.figures.exhibit import RunData
from analysis.figures.plan import Nodes
from analysis.planning.verdict import NoPlan, Plan
from analysis.report import provenance
from analysis.report.blocks import (
    Block,
    Code,
    Facts,
    Missing,
    Page,
    Paragraph,
    Room,
    Section,
    across,
    arrow_table,
    figure_block,
    figure_sections,
    main_figures,
    moment,
    runs_figures,
    study_figures,
    value,
    without_empty,
)
from analysis.report.sections import (
    checks_counted,
    checks_table,
    definitions,
    errors,
    percentiles,
    power_sections,
    quality_sections,
)
from analysis.results import locations, tables
from analysis.results.asked import AskedExperiment, describe
from analysis.results.json_border import to_tree
from analysis.results.locations import REPORT
from analysis.results.runs import Run
from analysis.results.studies import Study
from analysis.results.verdicts import RunVerdict, StudyVerdict
from analysis.views import answers as views
from analysis.views import plan as plan_view
from analysis.views import rates
from analysis.views import study as view
from analysis.views.shown import Answer, Cell, Link, Table
from conf.compose import UNKNOWN

TRUST = "May the number be believed?"
CAPACITIES = {
    "run": "run",
    "verdict": "verdict",
    "estimate_qps_per_node": "capacity, QPS per node",
    "low_qps_per_node": "95 % interval from",
    "high_qps_per_node": "to",
    "certified_qps_per_node": "certified QPS per node",
    "interval_of": "interval and certified are of",
    "binding": "limited by",
    "layout": "layout",
    "workload": "workload",
    "tokens": "lengths",
    "nodes": "nodes",
    "engine": "engine",
    "model": "model",
    "routing": "routing",
    "bound_ttft_p90_ms": "bound on p90 TTFT, ms",
    "bound_tpot_p90_ms": "bound on p90 TPOT, ms",
    "windows_used": "windows that count",
    "requests": "requests",
}
"""Columns of `tables.capacity_table` with the answer first, and their words."""
RATES = "Every rate in QPS per node, latencies in ms, tokens/s per node (windows.parquet)"
PURPOSE = "How much was seen, and every check with its worst figure."


def of_run(run: Run) -> Page:
    """The page of one run, ended or not."""
    verdict, claim, asked, data = run.verdict, _answer(run), _asked(run), RunData.whole(run)
    shown = [*figure_sections(data, Room()), errors(data)]
    every_rate = _rates(verdict)
    main = [replace(one, blocks=(*one.blocks, *every_rate, *percentiles(data))) for one in shown[:1]]
    shown += power_sections(verdict.power if verdict else None)
    sections = [*main, _trust(verdict), *without_empty(shown[1:])]
    capacity = verdict.capacity if verdict else None
    sections += [provenance.of_run(run), definitions(asked, capacity)]
    heading = _heading(asked, str(run.manifest.get("verb", "run")))
    return Page(f"{claim.word}: {run.name}", heading, _subtitle(run, asked), claim, sections)


def of_study(found: Study, out: Path) -> Page:
    """The page of a study for the file `out`: its answer, its parts, and the main figures of each."""
    verdict, claim, room = found.verdict, _of_study(found), Room()
    links = {name: _link(name, found.path / name / REPORT, out) for name in verdict.names}
    parts: list[Block] = [replace(view.table(verdict, links), title="Parts of the study (study.json)")]
    parts += [differing] if (differing := differences(verdict)) else []
    parts += study_figures(verdict, room)
    sections = [
        Section("parts", "The parts", "What each run found; each has a report of its own.", tuple(parts)),
        *quality_sections(found, room),
        Section("trust", TRUST, PURPOSE, tuple(_checks(verdict))),
        *_beside(found.parts, room),
        *provenance.of_study(verdict, found.parts),
        definitions(verdict.asked, verdict.capacity),
    ]
    heading = _heading(verdict.asked, verdict.study)
    subtitle = f"Study {found.name}: {len(verdict.names)} runs, kind {verdict.study}"
    return Page(f"{claim.word}: {found.name}", heading, subtitle, claim, sections)


def of_runs(runs: Sequence[Run]) -> Page:
    """The page of several runs: capacities in one table, then the main figures of each."""
    room = Room()
    found = tables.capacity_table(runs).select(list(CAPACITIES)).rename_columns(list(CAPACITIES.values()))
    known = across(arrow_table("Capacity of each run, as far as one is claimed", found, "not claimed"))
    blocks = known, *runs_figures(runs, room)
    claims = "What each run claims; a run that is void or did not end claims nothing."
    sections = [
        Section("capacities", "Capacities", claims, blocks),
        *_beside(runs, room),
        definitions(_asked(runs[0]), None),
    ]
    names = ", ".join(run.name for run in runs)
    changed = [line for run in runs for line in locations.altered(run.path)]
    claim = _altered(changed) if changed else None
    return Page(f"{len(runs)} runs", f"{len(runs)} runs side by side", names, claim, sections)


def _beside(runs: Sequence[Run], room: Room) -> list[Section]:
    """Runs that share a page, each with its verdict, main figures and the command that repeats it."""
    sections = []
    for place, run in enumerate(runs):
        known = run.verdict.checks if run.verdict else None
        trust = [Paragraph(checks_counted(known))] if known else []
        blocks = (
            _answer(run),
            *trust,
            *main_figures(RunData(run), room, f"{place}-"),
            *provenance.brief(run),
        )
        sections.append(Section(f"run-{place}", f"Run {run.name}", _subtitle(run, _asked(run)), blocks))
    return sections


def _trust(verdict: RunVerdict | None) -> Section:
    if verdict is None:
        why = "the run has no sweep.json; its windows were not judged once every row was final"
        return Section("trust", TRUST, PURPOSE, (Missing("Checks", why),))
    blocks: list[Block] = _checks(verdict)
    return Section("trust", TRUST, PURPOSE, tuple(blocks))


def _rates(verdict: RunVerdict | None) -> list[Table]:
    """Every rate with its final figures; a row stacks on a narrow screen."""
    if verdict is None or not verdict.windows:
        return []
    return [replace(rates.table(verdict.windows, verdict.asked.slo), title=RATES)]


def _checks(verdict: RunVerdict | StudyVerdict) -> list[Block]:
    if isinstance(verdict, RunVerdict) and verdict.checks:
        return [Paragraph(checks_counted(verdict.checks)), checks_table(verdict.checks, verdict.valid)]
    if isinstance(verdict, StudyVerdict):
        return [Paragraph("The checks of each part are in its own report.")]
    return [Missing("Checks", "no window was judged")]


def _answer(run: Run) -> Answer:
    """The answer of a run, killed or ended."""
    if found := locations.altered(run.path):
        return _altered(found)
    return views.unfinished(run) if run.verdict is None else views.answer(run.verdict)


def _of_study(found: Study) -> Answer:
    changed = locations.altered(found.path)
    return _altered(changed) if changed else views.answer(found.verdict)


def _altered(found: Sequence[str]) -> Answer:
    """The answer of a folder whose files changed since they were written."""
    headline = "No capacity is claimed: its files are not as they were written"
    return Answer("ALTERED", "bad", headline, notes=tuple(found[: locations.MOST_NAMED]))


def _asked(run: Run) -> AskedExperiment:
    """The asked load; of a killed run from its configuration."""
    if run.verdict:
        return run.verdict.asked
    return describe(run.config)


def _heading(asked: AskedExperiment, verb: str) -> str:
    what = {
        "probe": "Probe",
        "compare": "Comparison",
        "quality": "Quality gate",
        "matrix": "Capacity matrix",
        "recipe": "Calibration probes",
    }
    is_unknown = asked.engine == "external" and asked.model == UNKNOWN
    service = "an external service" if is_unknown else asked.model
    return f"{what.get(verb, 'Capacity')} of {service}"


def _subtitle(run: Run, asked: AskedExperiment) -> str:
    nodes = f"{asked.nodes} x {asked.hardware}, {asked.layout}"
    if asked.engine == "external":
        nodes = f"served at {', '.join(run.config.target.urls)}"
    parts = nodes, f"{asked.engine} engine", f"workload {asked.load}", f"run {run.name}"
    return ", ".join(part for part in (*parts, moment(run.manifest.get("started_at"))) if part)


def _link(name: str, report: Path, out: Path) -> Cell:
    if not report.exists():
        return name
    return Link(name, Path(os.path.relpath(report.resolve(), out.resolve().parent)).as_posix())


def differences(study: StudyVerdict) -> Table | None:
    """Keys that differ between A and B of a comparison; None for another study."""
    if not study.differs:
        return None
    rows = tuple((key, value(ours), value(theirs)) for key, (ours, theirs) in study.differs.items())
    return Table("What differs from A to B", ("key", "A", "B"), rows)


UNWRITTEN = "no file for Ray Serve was asked for; --serve-config FILE.yaml writes it"
PREDICTED = "a file for Ray Serve needs the folder of a run: this capacity is predicted"
PLAN_HEADS = {
    "basis": ("What it rests on", "The capacity, and the configuration that has it."),
    "rules": ("Which rule asks for them", "The fewest nodes that each rule is content with."),
    "hours": ("Over the day", "Nodes by the hour."),
    "cost": ("Cost and power", "By the price that you gave, and watts as given or measured."),
}
"""Anchor, heading and purpose of the sections behind the figure."""


def of_plan(plan: Plan | NoPlan) -> Page:
    """The page of a plan, or of its refusal."""
    answer = plan_view.answer(plan)
    if isinstance(plan, NoPlan):
        claim = replace(answer, headline="Nothing is planned", notes=(f"{answer.headline}.",))
        return Page("no plan", "Plan", "The run allows no plan", claim, [])
    on = plan.planned_on
    cost: tuple[Block, ...] = tuple(plan_view.cost_tables(plan)) or (Paragraph(plan_view.NO_PRICE),)
    blocks: dict[str, tuple[Block, ...]] = {
        "basis": (Facts(tuple(plan_view.basis(plan))),),
        "rules": (Facts(tuple(plan_view.rules(plan))),),
        "hours": (Facts(tuple(plan_view.hours(plan))),) if plan.day else (),
        "cost": (*cost, Facts(tuple(plan_view.power(plan)))),
    }
    figure, whole = figure_block(Nodes, plan, Room()), json.dumps(to_tree(plan), indent=1)
    code = Code("The plan as JSON, every figure with its unit", whole, folded=True)
    sections = [
        Section("nodes", "How many nodes", "What grows with the demand.", (figure, code)),
        *(Section(anchor, *PLAN_HEADS[anchor], shown) for anchor, shown in blocks.items() if shown),
        Section(
            "service",
            "Taken into service",
            "Ray Serve's autoscaling for the planned nodes.",
            _serve_settings(plan),
        ),
    ]
    subtitle = f"Planned on {on.name}, {on.found_by}: {on.asked.load}"
    title = f"{answer.word}: {on.name}"
    return Page(title, "Plan of a service", subtitle, _plan_answer(plan, answer), sections)


def _plan_answer(plan: Plan, answer: Answer) -> Answer:
    """The answer at the head of the page; its facts have sections of their own."""
    figures = (
        ("Planned per node", f"{plan.service.qps_per_node:.2f} QPS"),
        ("Headroom", f"{100 * plan.care.headroom:g} %"),
        ("Spare nodes", str(plan.care.spare_nodes)),
    )
    fleet, _, efficiency = answer.headline.partition("; ")
    reason = [f"{plan.reason}."] if plan.reason else []
    caution = [plan.planned_on.caution] if plan.planned_on.caution else []
    return replace(
        answer, headline=fleet, facts=figures, tables=(), notes=(f"{efficiency}.", *reason, *caution)
    )


def _serve_settings(plan: Plan) -> tuple[Block, ...]:
    """The settings of Ray Serve, or how to have them written."""
    written = plan.into_service
    if written is None:
        why = PREDICTED if plan.planned_on.found_by == "predicted" else UNWRITTEN
        return (Missing("Ray Serve's settings", why),)
    settings = Facts(tuple((name, value(it)) for name, it in written.autoscaling_config.items()))
    where = f"Ray Serve's autoscaling in {written.file}; its comments give each number's reason:"
    return Paragraph(where), settings
