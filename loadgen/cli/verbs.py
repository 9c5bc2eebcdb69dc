"""New runs and studies: the folder and the act that belong to each verb.

Knows experiments; knows no argument, and prints nothing.
"""

from contextlib import closing
from dataclasses import replace

from analysis.results import summary
from analysis.results.studies import PartVerdict
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.study_verdict import StudyVerdict
from conf import Experiment
from loadgen.drive.plan import Past
from loadgen.run import measure
from loadgen.run.folder import Folder
from loadgen.run.measure import Act, Site
from loadgen.run.progress import Emit
from loadgen.run.run_folder import RunFolder
from loadgen.studies import (
    calibration_probes,
    comparison,
    matrix_cells,
    matrix_study,
    published_ladder_run,
    study,
)
from loadgen.studies.matrix_cells import Cells
from loadgen.studies.shared_service import SharedService


def sweep(asked: Experiment, site: Site, show: Emit) -> PartVerdict:
    """Search for the capacity: in one run, or in a study of several deployments or repeats."""
    if asked.search.parts > 1:
        return study.run(study.of(asked), measure.create(Folder, asked), part_runner(site, show), show)
    folder = measure.create(RunFolder, asked)
    return measure.measure(asked, "sweep", folder, measure.search, site, show)


def matrix(cells: Cells, site: Site, show: Emit) -> StudyVerdict:
    """Search for the capacity of every cell of a grid: a study in which each service is deployed once."""
    folder = measure.create(Folder, cells.first)
    study_asked = matrix_study.begun(cells, folder)
    for line in matrix_cells.refusals(cells):
        folder.event("study", text=line)
        show("study", text=line)
    return run_cells(cells, study_asked, folder, site, show)


def probe(asked: Experiment, site: Site, show: Emit, required: bool = False) -> RunVerdict:
    """Offer one load without a search, and judge it: one window, or as many as pass or fail it."""
    folder = measure.create(RunFolder, asked)
    act = measure.require if required else measure.hold
    return measure.measure(asked, "probe", folder, act, site, show)


def compare(a: Experiment, b: Experiment, site: Site, show: Emit) -> StudyVerdict:
    """Search on A and replay its windows on B: a study of two parts."""
    folder = measure.create(Folder, a)
    return study.run(comparison.begun(folder, a, b), folder, part_runner(site, show), show)


def recipe(asked: Experiment, guess_qps: float | None, site: Site, show: Emit) -> StudyVerdict:
    """Run the probes of the calibration recipe: a study."""
    study_asked = calibration_probes.of(asked, guess_qps)
    return study.run(study_asked, measure.create(Folder, asked), part_runner(site, show, "probe"), show)


def progressive(asked: Experiment, site: Site, show: Emit) -> StudyVerdict:
    """Run the MI325X paper's benchmark: a study, each run of it on a service deployed anew."""
    folder = measure.create(Folder, asked)
    return study.run(
        published_ladder_run.of(asked), folder, part_runner(site, show, published_ladder_run.KIND), show
    )


def run_cells(cells: Cells, asked: study.StudyPlan, folder: Folder, site: Site, show: Emit) -> StudyVerdict:
    """Run a grid with one service for consecutive cells that need the same deployment."""
    with closing(SharedService(site.service, list(cells.asked.values()), show)) as kept:
        run_one = part_runner(replace(site, service=kept.service), show)

        def run_part(experiment: Experiment, folder: RunFolder, act: Act, before: Past | None) -> RunVerdict:
            verdict = run_one(experiment, folder, act, before)
            if verdict.exit_code in (summary.EXIT_TARGET, summary.EXIT_INTERNAL):
                kept.close()  # the next cell must not inherit what this one died of
            return verdict

        return study.run(asked, folder, run_part, show)


def part_runner(site: Site, show: Emit, verb: str = "sweep") -> study.RunPart:
    """A function that measures one run of a verb in its folder."""

    def run_part(experiment: Experiment, folder: RunFolder, act: Act, before: Past | None) -> RunVerdict:
        return measure.measure(experiment, verb, folder, act, site, show, before)

    return run_part
