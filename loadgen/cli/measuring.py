"""Measured runs and studies: their site, folders, progress and page, and how one that was cut short goes on.

It is imported only where something is measured.
"""

import argparse
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.live.address import Address
from analysis.live.state import Ending, LiveState, LiveView
from analysis.results import locations, studies, summary, verdicts
from analysis.results.locations import SUMS
from analysis.results.runs import Run, load_run
from analysis.results.studies import PartVerdict
from analysis.results.verdicts import RunVerdict, StudyVerdict
from analysis.views import answers
from conf import ConfigError, Experiment, load
from conf.io import terminal
from conf.specs.engine import SimulatedEngine
from loadgen.cli import engine_model, machine, output
from loadgen.cli.arguments import LIVE
from loadgen.cli.service import service
from loadgen.cli.words import checked_experiment
from loadgen.drive.load_feed import Past
from loadgen.run import progress, resumption
from loadgen.run.jobs import Job, SearchCapacity, SharedService, Site
from loadgen.run.lifecycle import RunLifecycle
from loadgen.run.progress import Emit
from loadgen.run.run_folder import Folder, RunFolder, refuse_links
from loadgen.search.pacing import fitted
from loadgen.search.window_plan import Start
from loadgen.studies import calibration_probes, comparison, published_ladder, quality_study, study
from loadgen.studies.matrix_study import MatrixStudy

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


def measured(
    arguments: argparse.Namespace, work: Job | study.Study | Path, planned: output.PlannedRun | None = None
) -> PartVerdict:
    """The verdict of `work`, or of the folder that is resumed, with the path of its report.

    Progress and perhaps a page show how it goes on. The time of what is `planned` is said first. A start that
    failed leaves no folder, unless it was to be resumed.
    """
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
            show("plan", text=output.duration(planned))
            # A simulated engine's kernels are noted with its result.
            is_real = not isinstance(planned.experiment.engine, SimulatedEngine)
            for line in planned.kernels if is_real else ():
                show("note", text=line)
        site = Site(engine_model.start, service, engine_model.constants_ratio)
        if isinstance(work, Path):
            verdict = resume(work, site, show)
        else:
            verdict = without_failed_start(run(work, site, show))
        verdict = output.with_report(verdict)
        if page:
            text = str(answers.brief(verdict))
            page.end(Ending(text, verdict.exit_code, verdict.report or None))
        return verdict


@contextmanager
def _page(arguments: argparse.Namespace) -> Iterator[LiveView | None]:
    """Serve the page of `--live` until the end of the block. Raises ConfigError if that is not possible."""
    if arguments.live is None:
        yield None
        return
    # An HTTP server and Prometheus's format, which no command without a page needs.
    from analysis.live.server import invitation, serving

    view = LiveView(LiveState(verb=arguments.verb))
    with serving(Address.from_words(arguments.live, LIVE), view, LIVE) as server:
        terminal.note(invitation(server.address))
        try:
            yield view
        finally:
            if view.state.ending is None:
                view.end(Ending(NO_RESULT, None))


def without_failed_start(verdict: PartVerdict) -> PartVerdict:
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


def run(work: Job | study.Study, site: Site, show: Emit) -> PartVerdict:
    """Do a job in a new run folder, or the parts of a study in a folder of theirs."""
    if isinstance(work, study.Study):
        folder = Folder.create(Path(work.experiment.out), work.experiment.run)
        for line in work.lines(refused=True) if isinstance(work, MatrixStudy) else ():
            study.tell(folder, show, line)
        return run_study(work, folder, site, show)
    scale = work.experiment.time_scale
    if isinstance(work, machine.SearchOnFastClock) and scale != 1:
        of_engine = "seconds of budgets and windows are the engine's"
        show("clock", text=f"simulated clock x{scale:g}: {of_engine}; {machine.KEY}=1 is real time")
    run_folder = RunFolder.create(Path(work.experiment.out), work.experiment.run)
    verdict = RunLifecycle(work, run_folder, site, show).measure()
    if not isinstance(work, machine.SearchOnFastClock) or not work.was_too_fast(verdict):
        return verdict
    shutil.rmtree(run_folder.path)
    show("clock", text=f"this machine is too busy for a clock x{scale:g}: begun again")
    slower = machine.with_clock(work.experiment, next(each for each in machine.SCALES if each < scale))
    return run(machine.SearchOnFastClock(slower), site, show)


def run_study(several: study.Study, folder: Folder, site: Site, show: Emit) -> StudyVerdict:
    """Run a study: a service for each part, or one for consecutive cells that need the same deployment."""
    with ExitStack() as stack:
        kept: SharedService | None = None
        if isinstance(several, MatrixStudy):
            runs = list(several.experiments.values())
            kept = stack.enter_context(closing(SharedService(site.service, runs, show)))
            site = replace(site, service=kept.service)

        def run_part(job: Job, folder: RunFolder, before: Past | None) -> RunVerdict:
            verdict = RunLifecycle(job, folder, site, show, before).measure()
            if kept and verdict.exit_code in (summary.EXIT_TARGET, summary.EXIT_INTERNAL):
                kept.close()  # the next cell must not inherit what this one died of
            return verdict

        return study.run(several, folder, run_part, show)


def resume(path: Path, site: Site, show: Emit) -> PartVerdict:
    """Recover the remains of a killed run or study, and continue it.

    Raises ConfigError with the remedy, or RunError.
    """
    locations.refuse_altered(path)
    verdict = study.result(path)
    if verdict is not None:
        show("resume", text=f"{path} has ended: nothing to resume")
        return verdict
    if studies.is_study(path):
        experiment = saved_experiment(path)
        with resumption.resuming():
            folder = Folder(path)
        return run_study(_saved_study(path, experiment), folder, site, show)
    run = _cut_short(path)
    again, rows = resumption.reopen(run)
    show("resume", text=f"{path}: {rows} requests on record")
    job = SearchCapacity(saved_experiment(path))
    return RunLifecycle(job, again, site, show, resumption.continued(run)).measure()


def saved_experiment(path: Path) -> Experiment:
    """The experiment of a run's or a study's folder. Raises ConfigError or RunError."""
    kind = studies.load_verdict(path).study if studies.is_study(path) else ""
    return checked_experiment(kind if kind in OWN_WORDS else "sweep", [], path / "config.yaml")


def left(path: Path) -> str:
    """One line about what `resume` would still do in a folder. Raises as `resume` does."""
    locations.refuse_altered(path)
    with resumption.resuming():
        refuse_links(path.resolve())
    if study.result(path) is not None:
        return f"# {path} has ended: nothing to resume"
    if studies.is_study(path):
        saved_experiment(path)
        names = studies.load_verdict(path).names
        ended = [name for name in names if study.result(path / name) is not None]
        left = ", ".join(name for name in names if name not in ended) or "only the verdict"
        return f"# {len(ended)} of {len(names)} parts have ended; left: {left}"
    run = _cut_short(path)
    before, search = resumption.continued(run), saved_experiment(path).search
    budget_s = fitted(search, Start(), before.windows).budget_s
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
