"""Whole pages: of one run, of a study, of several runs side by side.

Knows the order of sections; other modules fill them.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.report import answers, banner, checks, definitions, exhibits, provenance, study
from analysis.report.blocks import Block, Cell, Link, Missing, Page, Paragraph, Section
from analysis.report.exhibits import Room
from analysis.report.study import StudyFolder
from analysis.report.wording import moment, table
from analysis.results import integrity, summary, tables
from analysis.results.locations import REPORT
from analysis.results.runs import Run

Tree = Mapping[str, Any]

TRUST = "May the number be believed?"
CAPACITIES = (
    *("run", "verdict", "estimate_qps_per_node", "low_qps_per_node", "high_qps_per_node"),
    *("certified_qps_per_node", "binding", "layout", "workload", "nodes", "engine", "model", "routing"),
    *("bound_ttft_p90_ms", "bound_tpot_p90_ms", "windows_used", "requests"),
)
"""Columns of `tables.capacity_table` with the answer first."""
PURPOSE = "What was asked, how much was seen, and every check with its worst figure."


def of_run(run: Run) -> Page:
    """The page of one run, ended or not."""
    tree, said, asked = run.sweep, banner.of_run(run), _asked(run)
    sections = [_trust(run), *_with_errors(exhibits.sections(run, Room()), run)]
    sections += [provenance.of_run(run), definitions.section(asked, (tree or {}).get("capacity"))]
    heading = _heading(asked, str(run.manifest.get("verb", "run")))
    return Page(f"{said.word}: {run.name}", heading, _subtitle(run, asked), said, sections)


def of_study(found: StudyFolder, out: Path) -> Page:
    """The page of a study for the file `out`: its answer, its parts, and the main figures of each."""
    tree, said, room = found.tree, banner.of_study(found.path, found.tree), Room()
    links = {name: _link(name, found.path / name / REPORT, out) for name in tree["names"]}
    parts: list[Block] = [study.parts(tree, links)]
    parts += [block for block in (study.together(tree), study.differences(tree)) if block]
    parts += exhibits.of_study(tree, room)
    sections = [
        Section("parts", "The parts", "What each run found; each has a report of its own.", tuple(parts)),
        Section("trust", TRUST, PURPOSE, (*_checks(tree), answers.rests_on(tree))),
        *_beside(found.parts, room),
        *provenance.of_study(tree, found.parts),
        definitions.section(tree["asked"], tree.get("capacity")),
    ]
    heading = _heading(tree["asked"], tree["study"])
    subtitle = f"Study {found.name}: {len(tree['names'])} runs, kind {tree['study']}"
    return Page(f"{said.word}: {found.name}", heading, subtitle, said, sections)


def of_runs(runs: Sequence[Run]) -> Page:
    """The page of several runs: capacities in one table, then the main figures of each."""
    room = Room()
    found = tables.capacity_table(runs).select(CAPACITIES)
    known = table("Capacity of each run, as far as one is claimed", found, "not claimed")
    blocks = known, *exhibits.of_runs(runs, room)
    claims = "What each run claims; a run that is void or did not end claims nothing."
    sections = [
        Section("capacities", "Capacities", claims, blocks),
        *_beside(runs, room),
        definitions.section(_asked(runs[0]), None),
    ]
    names = ", ".join(run.name for run in runs)
    changed = [line for run in runs for line in integrity.altered(run.path)]
    said = banner.altered(changed) if changed else None
    return Page(f"{len(runs)} runs", f"{len(runs)} runs side by side", names, said, sections)


def _beside(runs: Sequence[Run], room: Room) -> list[Section]:
    """Runs that share a page, each with its verdict, main figures and the command that repeats it."""
    sections = []
    for place, run in enumerate(runs):
        trust = [Paragraph(checks.counted(run.checks))] if run.checks else []
        blocks = banner.of_run(run), *trust, *exhibits.main(run, room, f"{place}-"), *provenance.brief(run)
        sections.append(Section(f"run-{place}", f"Run {run.name}", _subtitle(run, _asked(run)), blocks))
    return sections


def _trust(run: Run) -> Section:
    """Checks, configuration and windows behind the verdict."""
    tree = run.sweep
    if tree is None:
        why = "the run has no sweep.json; its windows were not judged once every row was final"
        return Section("trust", TRUST, PURPOSE, (Missing("Checks", why),))
    blocks: list[Block] = [*_checks(tree), answers.rests_on(tree)]
    if probe := tree.get("probe"):
        blocks.append(answers.p90s("Both p90s against their bounds", probe))
    if hold := tree.get("hold"):
        blocks.append(answers.held(hold))
    if tree.get("dwells"):
        blocks.append(answers.windows(tree["dwells"]))
    return Section("trust", TRUST, PURPOSE, tuple(blocks))


def _checks(tree: Tree) -> list[Block]:
    if tree.get("checks"):
        return [Paragraph(checks.counted(tree["checks"])), checks.table(tree["checks"], bool(tree["valid"]))]
    if tree.get("study"):
        return [Paragraph("The checks of each part are in its own report.")]
    return [Missing("Checks", "no window was judged")]


def _with_errors(sections: Sequence[Section], run: Run) -> list[Section]:
    """The sections, with failure messages in the one on errors."""
    found = answers.errors(run)
    return [
        Section(one.id, one.title, one.purpose, (*one.blocks, found)) if found and one.id == "errors" else one
        for one in sections
    ]


def _asked(run: Run) -> Tree:
    """The asked load; of a killed run from its configuration."""
    asked: Tree = run.sweep["asked"] if run.sweep else summary.describe(run.config)
    return asked


def _heading(asked: Tree, verb: str) -> str:
    """The heading: the kind of measurement and its service."""
    what = {
        "probe": "Probe",
        "compare": "Comparison",
        "matrix": "Capacity matrix",
        "recipe": "Calibration probes",
    }
    service = asked["model"] if asked["engine"] != "external" else "an external service"
    return f"{what.get(verb, 'Capacity' if verb != 'verify' else 'Verification')} of {service}"


def _subtitle(run: Run, asked: Tree) -> str:
    nodes = (
        f"{asked['nodes']} x {asked['hardware']}, {asked['layout']}" if asked["engine"] != "external" else ""
    )
    parts = nodes, f"{asked['engine']} engine", f"workload {asked['workload']}", f"run {run.name}"
    return ", ".join(part for part in (*parts, moment(run.manifest.get("started_at"))) if part)


def _link(name: str, report: Path, out: Path) -> Cell:
    """The name of a part, linked to its report if there is one."""
    if not report.exists():
        return name
    return Link(name, Path(os.path.relpath(report.resolve(), out.resolve().parent)).as_posix())
