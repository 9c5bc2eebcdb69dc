"""Measured runs and studies: their site, folders, progress and page, and how one that was cut short goes on.

It is imported only where something is measured.
"""

import argparse
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from analysis.live.address import Address
from analysis.live.state import Ending, LiveState, LiveView, Snapshot
from analysis.results import locations, studies, summary, verdicts
from analysis.results.locations import SUMS
from analysis.results.runs import Run, RunError, load_run
from analysis.results.studies import PartVerdict
from analysis.results.verdicts import RunVerdict, StudyVerdict
from analysis.views import answers
from conf import ConfigError, Experiment, load
from conf.io import terminal
from conf.specs.experiment import SimulatedEngine
from loadgen.cli import dry_run, engine_model, machine, output
from loadgen.cli.arguments import LIVE
from loadgen.cli.service import service
from loadgen.cli.words import all_kernels
from loadgen.drive.load_feed import Past
from loadgen.run import progress, resumption
from loadgen.run.jobs import Job, SearchCapacity, SharedService, Site
from loadgen.run.lifecycle import RunLifecycle
from loadgen.run.progress import Emit
from loadgen.run.run_folder import Folder, RunFolder, created
from loadgen.search.pacing import longer_at
from loadgen.studies import (
    calibration_probes,
    comparison,
    matrix_study,
    published_ladder,
    quality_study,
    study,
)
from loadgen.studies.matrix_study import Cells, MatrixStudy

Measured = TypeVar("Measured", bound=RunVerdict | StudyVerdict)
OWN_WORDS = (calibration_probes.KIND, published_ladder.KIND, quality_study.KIND)
"""Kinds of studies whose verb has words of its own."""
WITHOUT_EVIDENCE = {
    "config.yaml",
    "events.jsonl",
    "manifest.json",
    "sweep.json",
    studies.OTHER,
    studies.FILE,
    SUMS,
}
"""Files of every folder, which repeat the command and the answer on the screen."""
NO_RESULT = "The command ended before it had a result; its own screen says why."


@dataclass(frozen=True, slots=True)
class Measuring:
    """A command that measures: the `site` of its runs, `show` for their events, and the page of `--live`."""

    site: Site
    show: Emit
    page: LiveView | None
    keeps_folder: bool

    def ended(self, verdict: Measured) -> Measured:
        """The verdict with its report's path; a failed start leaves no folder, unless it `keeps_folder`."""
        if not self.keeps_folder:
            verdict = without_failed_start(verdict)
        verdict = output.with_report(verdict)
        if self.page:
            text = str(answers.brief(verdict))
            self.page.end(Ending(text, verdict.exit_code, verdict.report or None))
        return verdict


@contextmanager
def opened(
    arguments: argparse.Namespace, *experiments: Experiment, planned: dry_run.PlannedRun | None = None
) -> Iterator[Measuring]:
    """Measure in the block, with progress and perhaps a page.

    Kernels of unknown speed of the `experiments` are noted first, then the time of what is `planned`.
    """
    # A simulated engine's kernels are noted with its result.
    real = (each for each in experiments if not isinstance(each.engine, SimulatedEngine))
    for line in all_kernels(real):
        output.noting(arguments)(line)
    with (
        terminal.own_stdout() as out,
        progress.shown(arguments.json, out, arguments.quiet) as progress_show,
        _page(arguments) as page,
    ):

        def show(kind: str, /, **facts: Any) -> None:
            if page:
                page.add({"event": kind, **facts})
            progress_show(kind, **facts)

        if planned:
            show("plan", text=dry_run.duration(planned))
        site = Site(engine_model.start, service, engine_model.constants_ratio)
        yield Measuring(site, show, page, keeps_folder=arguments.verb == "resume")


@contextmanager
def _page(arguments: argparse.Namespace) -> Iterator[LiveView | None]:
    """Serve the page of `--live` until the end of the block. Raises ConfigError if that is not possible."""
    if arguments.live is None:
        yield None
        return
    # An HTTP server and Prometheus's format, which no command without a page needs.
    from analysis.live.server import invitation, serving

    view = LiveView()
    view.snapshot = Snapshot(LiveState(verb=arguments.verb))
    with serving(Address.from_words(arguments.live, LIVE), view, LIVE) as server:
        terminal.note(invitation(server.address))
        try:
            yield view
        finally:
            if view.snapshot.ending is None:
                view.end(Ending(NO_RESULT, None))


def without_failed_start(verdict: Measured) -> Measured:
    """The verdict without its folder if its start failed: nothing was measured, and its name is free again.

    A folder that holds more, as the last words of engines or a prediction, stays.
    """
    if verdict.exit_code != summary.EXIT_TARGET or not verdict.folder:
        return verdict
    folder = Path(verdict.folder)
    files = {file.name for file in folder.rglob("*") if not file.is_dir()}
    if not files <= WITHOUT_EVIDENCE:
        return verdict
    shutil.rmtree(folder, ignore_errors=True)
    return replace(verdict, folder="")


def sweep(experiment: Experiment, site: Site, show: Emit) -> PartVerdict:
    """Search for the capacity: in one run, or in a study of several deployments or repeats."""
    if experiment.search.parts > 1:
        return new_study(study.several_sweeps(experiment), site, show)
    return new_run(SearchCapacity(experiment), site, show)


def sweep_on_free_clock(experiment: Experiment, site: Site, show: Emit) -> RunVerdict:
    """Search for the capacity of a simulated engine on a fast clock; begin again on a slower one if late."""
    while True:
        if experiment.time_scale != 1:
            show("clock", text=machine.clock_text(experiment))
        job, folder = machine.SearchOnFastClock(experiment), created(RunFolder, experiment)
        verdict = RunLifecycle(job, folder, site, show).measure()
        if not job.was_too_fast(verdict):
            return verdict
        shutil.rmtree(folder.path)
        show("clock", text=f"this machine is too busy for a clock x{experiment.time_scale:g}: begun again")
        experiment = machine.slower(experiment)


def matrix(cells: Cells, site: Site, show: Emit, beside: Mapping[str, str] | None = None) -> StudyVerdict:
    """Search for the capacity of every cell of a grid: a study in which each service is deployed once.

    `beside` are texts by file name, which belong into the study's folder from its beginning.
    """
    folder = created(Folder, cells.first)
    for line in matrix_study.cell_lines(cells, refused=True):
        folder.event("study", text=line)
        show("study", text=line)
    return run_study(MatrixStudy(cells, beside), folder, site, show)


def new_run(job: Job, site: Site, show: Emit) -> RunVerdict:
    """Do the job of one run in the folder that its experiment names."""
    return RunLifecycle(job, created(RunFolder, job.experiment), site, show).measure()


def new_study(several: study.Study, site: Site, show: Emit) -> StudyVerdict:
    """Run a study in the folder that its experiment names."""
    return run_study(several, created(Folder, several.experiment), site, show)


def run_study(several: study.Study, folder: Folder, site: Site, show: Emit) -> StudyVerdict:
    """Run a study: a service for each part, or one for consecutive cells that need the same deployment."""
    if not isinstance(several, MatrixStudy):
        return study.run(several, folder, part_runner(site, show), show)
    with closing(SharedService(site.service, list(several.cells.experiments.values()), show)) as kept:
        run_one = part_runner(replace(site, service=kept.service), show)

        def run_part(job: Job, folder: RunFolder, before: Past | None) -> RunVerdict:
            verdict = run_one(job, folder, before)
            if verdict.exit_code in (summary.EXIT_TARGET, summary.EXIT_INTERNAL):
                kept.close()  # the next cell must not inherit what this one died of
            return verdict

        return study.run(several, folder, run_part, show)


def part_runner(site: Site, show: Emit) -> study.RunPart:
    """A function that does the job of one run in its folder."""

    def run_part(job: Job, folder: RunFolder, before: Past | None) -> RunVerdict:
        return RunLifecycle(job, folder, site, show, before).measure()

    return run_part


LoadConfig = Callable[[Path], Experiment]
"""Reads a saved config.yaml. Raises ConfigError."""


def resume(path: Path, load_config: LoadConfig, site: Site, show: Emit) -> PartVerdict:
    """Recover the remains of a killed run or study, and continue it.

    Raises ConfigError with the remedy, or RunError.
    """
    locations.refuse_altered(path)
    verdict = study.result(path)
    if verdict is not None:
        show("resume", text=f"{path} has ended: nothing to resume")
        return verdict
    if studies.is_study(path):
        experiment = load_config(path / "config.yaml")
        try:
            folder = Folder(path)
        except OSError as error:
            raise ConfigError(f"cannot resume: {error}") from error
        return run_study(_saved_study(path, experiment), folder, site, show)
    run = _cut_short(path)
    again, rows = resumption.reopen(run)
    show("resume", text=f"{path}: {rows} requests on record")
    before = resumption.continued(run)
    return part_runner(site, show)(SearchCapacity(load_config(path / "config.yaml")), again, before)


def verb(path: Path) -> str:
    """The verb of the words in a folder's config.yaml."""
    kind = studies.load_verdict(path).study if studies.is_study(path) else ""
    if not isinstance(kind, str):
        raise RunError(f"{path} is not a readable study: {studies.FILE} does not say of which kind it is")
    return kind if kind in OWN_WORDS else "sweep"


def left(path: Path, load_config: LoadConfig) -> str:
    """One line about what `resume` would still do in a folder. Raises as `resume` does."""
    locations.refuse_altered(path)
    resumption.refuse_links(path)
    if study.result(path) is not None:
        return f"# {path} has ended: nothing to resume"
    if studies.is_study(path):
        load_config(path / "config.yaml")
        names = studies.load_verdict(path).names
        ended = [name for name in names if study.result(path / name) is not None]
        left = ", ".join(name for name in names if name not in ended) or "only the verdict"
        return f"# {len(ended)} of {len(names)} parts have ended; left: {left}"
    run = _cut_short(path)
    before, search = resumption.continued(run), load_config(path / "config.yaml").search
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


def _saved_study(path: Path, experiment: Experiment) -> study.Study:
    match studies.load_verdict(path).study:
        case verdicts.MATRIX:
            return MatrixStudy.saved(path)
        case comparison.KIND:
            return comparison.Comparison(experiment, load(base=path / studies.OTHER))
        case quality_study.KIND:
            return quality_study.QualityStudy(experiment, load(base=path / studies.OTHER))
        case calibration_probes.KIND:
            return calibration_probes.CalibrationStudy(experiment)
        case published_ladder.KIND:
            return published_ladder.LadderStudy(experiment)
    return study.several_sweeps(experiment)
