"""Runs and studies that were cut short: what is left of them, and how they continue.

Knows folders; knows no argument, and prints nothing.
"""

from collections.abc import Callable
from pathlib import Path

from analysis.results import integrity, studies
from analysis.results.runs import Run, RunError, load_run
from analysis.results.studies import PartVerdict
from conf import ConfigError, Experiment
from loadgen.cli import verbs
from loadgen.run import measure
from loadgen.run.folder import Folder
from loadgen.run.measure import Site
from loadgen.run.progress import Emit
from loadgen.studies import calibration_probes, comparison, matrix_study, published_ladder_run, study


def resume(path: Path, asked: Callable[[Path], Experiment], site: Site, show: Emit) -> PartVerdict:
    """Recover the remains of a killed run or study, and continue it.

    `asked` makes the experiment of a saved config.yaml. Raises ConfigError with the remedy, or RunError.
    """
    integrity.refuse_altered(path)
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
        if studies.load_study(path)["study"] == matrix_study.KIND:
            return verbs.run_cells(*matrix_study.again(path), folder, site, show)
        again_asked = _study(path, experiment)
        verb = {calibration_probes.KIND: "probe", published_ladder_run.KIND: published_ladder_run.KIND}.get(
            again_asked.kind, "sweep"
        )
        return study.run(again_asked, folder, verbs.part_runner(site, show, verb), show)
    run = _cut_short(path)
    again, rows = measure.reopen(run)
    show("resume", text=f"{path}: {rows} requests on record")
    before = measure.continued(run)
    return verbs.part_runner(site, show)(asked(path / "config.yaml"), again, measure.search, before)


def verb(path: Path) -> str:
    """The verb of the words in a folder's config.yaml."""
    kind = studies.load_study(path).get("study") if studies.is_study(path) else ""
    if not isinstance(kind, str):
        raise RunError(f"{path} is not a readable study: {studies.FILE} does not say of which kind it is")
    return kind if kind in (calibration_probes.KIND, published_ladder_run.KIND) else "sweep"


def left(path: Path, asked: Callable[[Path], Experiment]) -> str:
    """One line about what `resume` would still do in a folder. Raises as `resume` does."""
    integrity.refuse_altered(path)
    measure.refuse_links(path)
    if study.result(path) is not None:
        return f"# {path} has ended: nothing to resume"
    if studies.is_study(path):
        names = _study(path, asked(path / "config.yaml")).names
        ended = [name for name in names if study.result(path / name) is not None]
        left = ", ".join(name for name in names if name not in ended) or "only the verdict"
        return f"# {len(ended)} of {len(names)} parts have ended; left: {left}"
    run = _cut_short(path)
    before, search = measure.continued(run), asked(path / "config.yaml").search
    left_s = max(0.0, search.budget_s - before.elapsed_s) + search.confirm_s
    return f"# {len(before.segments)} finished segments, {left_s:.0f} s of load left"


def _cut_short(path: Path) -> Run:
    """The run of a folder that can be resumed by itself. Raises ConfigError or RunError for any other."""
    whole = studies.whole(path)
    if whole != path:
        part = "side of a comparison" if (whole / studies.OTHER).exists() else "cell of a matrix"
        raise ConfigError(f"{path} is one {part}: python -m loadgen resume {whole}")
    return load_run(path)


def _study(path: Path, asked: Experiment) -> study.StudyPlan:
    kind = studies.load_study(path)["study"]
    if kind == calibration_probes.KIND:
        return calibration_probes.of(asked)
    if kind == published_ladder_run.KIND:
        return published_ladder_run.of(asked)
    if kind == matrix_study.KIND:
        return matrix_study.again(path)[1]
    return comparison.again(path, asked) if kind == comparison.KIND else study.of(asked)
