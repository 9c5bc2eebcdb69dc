"""Fills one run folder: deploys, loads, concludes. What joins the rooms is handed in as a `Site`.

Knows the order of these things and which act belongs to a verb; knows no argument and prints nothing.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from analysis.results.runs import Run, RunError
from analysis.results.types.run_verdict import PlacingPrediction, RunVerdict
from conf import ConfigError, Experiment
from conf.io.one_line import reason
from conf.load import refuse_name
from loadgen.drive import fixed_rate as holding
from loadgen.drive import require as requiring
from loadgen.drive.driver import Driver
from loadgen.drive.plan import Past
from loadgen.drive.sweep import sweep
from loadgen.run import folder, verdicts
from loadgen.run.folder import Folder
from loadgen.run.lifecycle import Conclude, RunLifecycle, Service, read_of
from loadgen.run.progress import Emit
from loadgen.run.resume import past
from loadgen.run.run_folder import RunFolder, sha256_of
from loadgen.search.start import Start
from loadgen.traffic import trace

FolderKind = TypeVar("FolderKind", bound=Folder)
Act = Callable[[Experiment, Driver], Conclude]
"""What is done with a driver; what it returns concludes once every row is final."""


@dataclass(frozen=True, slots=True)
class Site:
    """The place where runs are measured.

    `start(experiment, verb, emit)` is the start of the search, with the engine model's prediction if there is
    one; `service(experiment, emit)` is up and warm within its block.
    """

    start: Callable[[Experiment, str, Emit], tuple[Start, PlacingPrediction | None]]
    service: Callable[[Experiment, Emit], AbstractContextManager[Service]]


def create(kind: type[FolderKind], experiment: Experiment) -> FolderKind:
    """A new folder as the experiment names it. Raises ConfigError with the remedy if that is not possible."""
    refuse_name(experiment.run)
    try:
        return kind.create(Path(experiment.out), experiment.run)
    except FileExistsError as error:
        raise ConfigError(
            f"run folder {error.filename} exists; choose another run=NAME or remove it"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot create the run folder: {error}") from error


def measure(
    experiment: Experiment,
    verb: str,
    folder: RunFolder,
    act: Act,
    site: Site,
    show: Emit,
    before: Past | None = None,
) -> RunVerdict:
    """Fill `folder` and return its conclusion; never raises for what can go wrong with the service.

    `show` is told every event; `before` is what earlier sessions of the run left.
    """
    run = RunLifecycle(experiment, folder, verb, show, before)
    for line in trace.cautions(experiment.workload):
        run.emit("trace", text=line)

    def prepare() -> Start:
        start, run.prediction = site.start(experiment, verb, run.emit)
        return start

    return run.measure(prepare, site.service(experiment, run.emit), lambda driver: act(experiment, driver))


def reopen(run: Run) -> tuple[RunFolder, int]:
    """The folder of a run that ended or was killed, with every row recovered, and their number.

    Raises ConfigError if somebody else fills it, the disk refuses or a table in it is broken.
    """
    try:
        folder = RunFolder(run.path)
        return folder, folder.collect().num_rows
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"cannot resume: {reason(error)}") from error


def continued(run: Run) -> Past:
    """The state from which a sweep goes on. Raises ConfigError with the remedy if it cannot go on."""
    verb = run.manifest["verb"]
    if verb == "verify":
        raise ConfigError("a verify is not continued; run it again: python -m loadgen verify RUN")
    if verb != "sweep":
        required = " --require" if "--require" in run.manifest.get("argv", []) else ""
        raise ConfigError(
            f"a {verb} is not continued; run it again: "
            f"python -m loadgen {verb} --config {run.path}/config.yaml run=NAME{required}"
        )
    for key, path in read_of(run.config.workload).items():
        if not path.is_file() or sha256_of(path) != run.manifest.get(key):
            raise ConfigError(f"{path} is not what it was when {run.path} began; put the old file back")
    try:
        return past(run)
    except RunError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        why = f"its events are not those of a run ({type(error).__name__}: {reason(error)})"
        raise ConfigError(f"cannot resume {run.path}: {why}; measure again") from error


def refuse_links(path: Path) -> None:
    """Raise ConfigError for a folder from which a link leads elsewhere: `resume` would write there."""
    try:
        folder.refuse_links(path.resolve())
    except OSError as error:
        raise ConfigError(f"cannot resume: {reason(error)}") from error


def search(experiment: Experiment, driver: Driver) -> Conclude:
    """The act of a sweep."""
    found = sweep(driver)
    return lambda: verdicts.of_sweep(experiment, driver, found, "wall")


def hold(experiment: Experiment, driver: Driver) -> Conclude:
    """The act of a probe."""
    holding.asked(driver, experiment)
    return lambda: verdicts.of_probe(experiment, driver)


def require(experiment: Experiment, driver: Driver) -> Conclude:
    """The act of a probe that passes or fails."""
    assert experiment.rate_qps
    found = requiring.require(driver, experiment.rate_qps, requiring.seconds(experiment))
    return lambda: verdicts.of_required(experiment, driver, found)
