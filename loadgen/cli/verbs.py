"""Runs and studies: the folder and the act of each verb, and how one that was cut short goes on."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.results import locations, studies, summary
from analysis.results.runs import Run, RunError, load_run
from analysis.results.studies import PartVerdict
from analysis.results.verdicts import RunVerdict, StudyVerdict
from conf import ConfigError, Experiment
from loadgen.cli import machine
from loadgen.drive.plan import Past
from loadgen.run import resumption
from loadgen.run import run_folder as folders
from loadgen.run.jobs import Job, OfferLoad, RequireRate, SearchCapacity, Site
from loadgen.run.lifecycle import RunLifecycle
from loadgen.run.progress import Emit
from loadgen.run.run_folder import Folder, RunFolder
from loadgen.search.pacing import longer_at
from loadgen.studies import (
    calibration_probes,
    comparison,
    matrix_study,
    published_ladder,
    quality_study,
    study,
)
from loadgen.studies.matrix_study import Cells
from loadgen.studies.quality_study import ServiceInUse
from loadgen.studies.shared_service import SharedService

OWN_WORDS = (calibration_probes.KIND, published_ladder.KIND, quality_study.KIND)
"""Kinds of studies whose verb has words of its own."""


def sweep(experiment: Experiment, site: Site, show: Emit) -> PartVerdict:
    """Search for the capacity: in one run, or in a study of several deployments or repeats."""
    if experiment.search.parts > 1:
        return run_in_new_folder(study.several_sweeps(experiment), site, show)
    return _run_in_new_folder(SearchCapacity(experiment), site, show)


def sweep_on_free_clock(experiment: Experiment, site: Site, show: Emit) -> RunVerdict:
    """Search for the capacity of a simulated engine on a fast clock; begin again on a slower one if late."""
    while True:
        if experiment.time_scale != 1:
            show("clock", text=machine.said(experiment))
        job, folder = machine.SearchOnFastClock(experiment), folders.created(RunFolder, experiment)
        verdict = RunLifecycle(job, folder, site, show).measure()
        if not job.was_too_fast(verdict):
            return verdict
        shutil.rmtree(folder.path)
        show("clock", text=f"this machine is too busy for a clock x{experiment.time_scale:g}: begun again")
        experiment = machine.slower(experiment)


def matrix(
    cells: Cells, site: Site, show: Emit, beside: Mapping[str, Mapping[str, Any]] | None = None
) -> StudyVerdict:
    """Search for the capacity of every cell of a grid: a study in which each service is deployed once.

    `beside` are files of JSON by name, which belong into the study's folder from its beginning.
    """
    folder = folders.created(Folder, cells.first)
    for name, tree in (beside or {}).items():
        folder.write_json(name, tree)
    grid = matrix_study.new_study(cells, folder)
    for line in matrix_study.cell_lines(cells, refused=True):
        folder.event("study", text=line)
        show("study", text=line)
    return run_cells(grid, folder, site, show)


def probe(experiment: Experiment, site: Site, show: Emit, required: bool = False) -> RunVerdict:
    """Offer one load without a search, and judge it: one window, or as many as pass or fail it."""
    job = RequireRate(experiment) if required else OfferLoad(experiment)
    return _run_in_new_folder(job, site, show)


def _run_in_new_folder(job: Job, site: Site, show: Emit) -> RunVerdict:
    return RunLifecycle(job, folders.created(RunFolder, job.experiment), site, show).measure()


def compare(a: Experiment, b: Experiment, site: Site, show: Emit) -> StudyVerdict:
    """Search on A and replay its windows on B: a study of two parts."""
    folder = folders.created(Folder, a)
    return run_study(comparison.new_study(folder, a, b), folder, site, show)


def quality(a: Experiment, b: Experiment, site: Site, show: Emit) -> StudyVerdict:
    """Ask A and B the same questions, alone or beside a load: a study of two parts."""
    folder, in_use = folders.created(Folder, a), ServiceInUse(site.service)
    gate = quality_study.new_study(folder, a, b, in_use)
    return run_study(gate, folder, replace(site, service=in_use.service), show)


def run_in_new_folder(several: study.Study, site: Site, show: Emit) -> StudyVerdict:
    """Run a study in the folder that its experiment names."""
    return run_study(several, folders.created(Folder, several.experiment), site, show)


def run_study(several: study.Study, folder: Folder, site: Site, show: Emit) -> StudyVerdict:
    """Run a study with a service for each of its parts."""
    return study.run(several, folder, part_runner(site, show), show)


def run_cells(grid: matrix_study.MatrixStudy, folder: Folder, site: Site, show: Emit) -> StudyVerdict:
    """Run a grid with one service for consecutive cells that need the same deployment."""
    with closing(SharedService(site.service, list(grid.cells.experiments.values()), show)) as kept:
        run_one = part_runner(replace(site, service=kept.service), show)

        def run_part(job: Job, folder: RunFolder, before: Past | None) -> RunVerdict:
            verdict = run_one(job, folder, before)
            if verdict.exit_code in (summary.EXIT_TARGET, summary.EXIT_INTERNAL):
                kept.close()  # the next cell must not inherit what this one died of
            return verdict

        return study.run(grid, folder, run_part, show)


def part_runner(site: Site, show: Emit) -> study.RunPart:
    """A function that does the job of one run in its folder."""

    def run_part(job: Job, folder: RunFolder, before: Past | None) -> RunVerdict:
        return RunLifecycle(job, folder, site, show, before).measure()

    return run_part


def resume(path: Path, asked: Callable[[Path], Experiment], site: Site, show: Emit) -> PartVerdict:
    """Recover the remains of a killed run or study, and continue it; `asked` reads a saved config.yaml.

    Raises ConfigError with the remedy, or RunError.
    """
    locations.refuse_altered(path)
    known = study.result(path)
    if known is not None:
        show("resume", text=f"{path} has ended: nothing to resume")
        return known
    if studies.is_study(path):
        experiment = asked(path / "config.yaml")
        try:
            folder = Folder(path)
        except OSError as error:
            raise ConfigError(f"cannot resume: {error}") from error
        if studies.load_verdict(path).study == matrix_study.KIND:
            return run_cells(matrix_study.saved_study(path), folder, site, show)
        in_use = ServiceInUse(site.service)
        begun = _study(path, experiment, in_use)
        return run_study(begun, folder, replace(site, service=in_use.service), show)
    run = _cut_short(path)
    again, rows = resumption.reopen(run)
    show("resume", text=f"{path}: {rows} requests on record")
    before = resumption.continued(run)
    return part_runner(site, show)(SearchCapacity(asked(path / "config.yaml")), again, before)


def verb(path: Path) -> str:
    """The verb of the words in a folder's config.yaml."""
    kind = studies.load_verdict(path).study if studies.is_study(path) else ""
    if not isinstance(kind, str):
        raise RunError(f"{path} is not a readable study: {studies.FILE} does not say of which kind it is")
    return kind if kind in OWN_WORDS else "sweep"


def left(path: Path, asked: Callable[[Path], Experiment]) -> str:
    """One line about what `resume` would still do in a folder. Raises as `resume` does."""
    locations.refuse_altered(path)
    resumption.refuse_links(path)
    if study.result(path) is not None:
        return f"# {path} has ended: nothing to resume"
    if studies.is_study(path):
        asked(path / "config.yaml")
        names = studies.load_verdict(path).names
        ended = [name for name in names if study.result(path / name) is not None]
        left = ", ".join(name for name in names if name not in ended) or "only the verdict"
        return f"# {len(ended)} of {len(names)} parts have ended; left: {left}"
    run = _cut_short(path)
    before, search = resumption.continued(run), asked(path / "config.yaml").search
    plans = [window.plan for window in before.windows]
    rates = [plan.rate_qps for plan in plans if plan.kind == "window"]
    budget_s = search.budget_s * (longer_at(rates[-1]) if rates else 1.0)
    left_s = max(0.0, budget_s - before.elapsed_s) + search.confirm_s
    return f"# {len(before.windows)} finished windows, {left_s:.0f} s of load left"


def _cut_short(path: Path) -> Run:
    """The run of a folder that can be resumed by itself. Raises ConfigError or RunError for any other."""
    whole = studies.whole(path)
    if whole != path:
        part = "side of a comparison" if (whole / studies.OTHER).exists() else "cell of a matrix"
        raise ConfigError(f"{path} is one {part}: python -m loadgen resume {whole}")
    return load_run(path)


def _study(path: Path, experiment: Experiment, in_use: ServiceInUse) -> study.Study:
    match studies.load_verdict(path).study:
        case calibration_probes.KIND:
            return calibration_probes.CalibrationStudy(experiment)
        case published_ladder.KIND:
            return published_ladder.LadderStudy(experiment)
        case quality_study.KIND:
            return quality_study.saved_study(path, experiment, in_use)
        case comparison.KIND:
            return comparison.saved_study(path, experiment)
    return study.several_sweeps(experiment)
