"""A measured grid: its cells in order, and a sweep for each; later ones replay the first one's requests.

`SharedService` decides which service is up, `comparison` replays.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, starmap
from pathlib import Path

from analysis.results import studies, summary
from analysis.results.runs import load_run
from analysis.results.studies import Parts, PartVerdict
from analysis.results.verdicts import (
    MATRIX,
    PAIRED,
    REFERENCE,
    UNPAIRED,
    CellRatio,
    MatrixCell,
    PartRow,
    RunVerdict,
    StudyVerdict,
)
from analysis.stats.estimate import Estimate
from conf import ConfigError, Experiment, load
from conf.compose import dump
from conf.matrix import PREFIX, Matrix
from loadgen.drive.driver import Driver
from loadgen.drive.programs import focus
from loadgen.predict.grid import Cell, cells_of
from loadgen.run.jobs import DEPLOYED, Job, SearchCapacity, same_service
from loadgen.run.run_folder import Folder
from loadgen.search.window_plan import Stop, WindowPlan
from loadgen.studies import comparison
from loadgen.studies.comparison import (
    OF_BOTH,
    Original,
    PairedReplays,
    PlayedWindows,
    ReplayWindows,
    unpaired_ratio,
)
from loadgen.studies.study import Study, result, seed_of

ENDS = (
    summary.EXIT_OK,
    summary.EXIT_INTERNAL,
    summary.EXIT_USAGE,
    summary.EXIT_SLO_MISSED,
    summary.EXIT_VOID,
    summary.EXIT_TARGET,
    summary.EXIT_OPEN,
)
"""Exit codes of a cell after which the next one begins: all but that of Ctrl-C."""


def cells_of_words(words: Matrix, make: Callable[[list[str]], Experiment]) -> list[Cell]:
    """The cells of `words`, those with the same deployment together; `make` makes the experiment of one.

    Raises ConfigError if no cell makes one, and for keys that a study has only once.
    """
    for key in words.axes:
        if key in OF_BOTH:
            raise ConfigError(f"{PREFIX}{key}: all cells have the same {key}; give {key}=... alone")
    outer = {key: values for key, values in words.axes.items() if key.partition(".")[0] in DEPLOYED}
    return cells_of(Matrix(words.shared, {**outer, **words.axes}), lambda each: one_sweep(make(each)))


def one_sweep(experiment: Experiment) -> Experiment:
    """The experiment of a cell. Raises ConfigError for one that is more than a sweep."""
    if experiment.search.parts > 1:
        raise ConfigError(
            f"a cell is one sweep, not the {experiment.search.parts} of search.deployments and "
            "search.repeats; add search.deployments=1 search.repeats=1"
        )
    return experiment


def unpaired(first: Experiment, other: Experiment) -> str:
    """The reason why a cell does not get the first one's requests; empty if it does."""
    apart = comparison.unlike(first, other)
    return f"{apart}, so that it has requests of its own" if apart else ""


class MatrixStudy(Study):
    """A sweep of each of the `cells`; `beside` are further texts that its folder holds, by file name."""

    kind = MATRIX
    ends = ENDS

    def __init__(self, cells: Sequence[Cell], beside: Mapping[str, str] | None = None) -> None:
        self.cells, self._beside = cells, beside or {}
        experiments = {cell.name: cell.experiment for cell in cells if cell.experiment is not None}
        first, *others = experiments
        # Cells share the first one's arrivals; a simulated engine's noise and more windows are a cell's own.
        seeds = {name: seed_of(experiments[name].seed, name) for name in others}
        own = {name: replace(experiments[name], seed=seed) for name, seed in seeds.items()}
        super().__init__(experiments[first], experiments | own)

    @classmethod
    def saved(cls, path: Path) -> "MatrixStudy":
        """The study of an existing folder."""
        verdict = studies.load_verdict(path)
        cells = [
            Cell(row.name, row.at, load(base=path / row.name / "config.yaml"))
            if row.name in verdict.names
            else Cell(row.name, row.at, None, row.reason)
            for row in verdict.cells or ()
        ]
        return cls(cells)

    @property
    def deployments(self) -> int:
        """Number of services that are deployed one after the other."""
        experiments = list(self.experiments.values())
        return len(experiments) - sum(starmap(same_service, pairwise(experiments)))

    def lines(self, refused: bool = False) -> list[str]:
        """The plan: each cell (or each `refused` one) with its action, or the reason why it is refused."""
        total = f"{len(self.cells)} cells, {self.deployments} deployment(s), each for all cells that need it"
        return [total, *(self._line(cell) for cell in self.cells if cell.refused or not refused)]

    def _line(self, cell: Cell) -> str:
        does = "the first one's requests, scaled in time, then its own"
        if cell.experiment is None:
            does = f"refused: {cell.refused}"
        elif cell.experiment is self.experiment:
            does = "a search of its own"
        elif why := unpaired(self.experiment, cell.experiment):
            does = why
        return f"{cell.name}, {' '.join(f'{key}={value}' for key, value in cell.at.items())}: {does}"

    def files(self, folder: Folder) -> Mapping[str, str]:
        """The configuration of every cell, in the cell's folder from the beginning, for `resume`."""
        parts = {name: replace(part, out=str(folder.typed)) for name, part in self.experiments.items()}
        return {**self._beside, **{f"{name}/config.yaml": dump(part) for name, part in parts.items()}}

    def job(self, name: str, experiment: Experiment) -> Job:
        """Replay the reference's requests if possible, else search alone."""
        first = reference(self._ended())
        if first is None or unpaired(self.experiments[first], self.experiments[name]):
            return SearchCapacity(experiment)
        return ReplayReference(experiment, self.path / first)

    def with_parts(self, verdict: StudyVerdict, parts: Parts, cut: PartRow | None) -> StudyVerdict:
        """The verdict with every cell's, its ratio to the reference, and the cell that was `cut`."""
        verdicts = {**self._ended(), **parts}
        first = reference(verdicts)
        ratio_by_name = {} if first is None else self._ratios(first, verdicts)
        cells = [
            MatrixCell(name=cell.name, at=cell.at, exit_code=cut.exit_code, reason=cut.reason)
            if cut and cut.name == cell.name
            else replace(
                MatrixCell.from_cell(cell.name, cell.at, cell.refused, verdicts.get(cell.name)),
                ratio=ratio_by_name.get(cell.name),
            )
            for cell in self.cells
        ]
        return replace(verdict, axes=tuple(self.cells[0].at), cells=tuple(cells))

    def conclude(self, verdict: StudyVerdict, parts: Parts) -> StudyVerdict:
        """As of a grid that is predicted, the exit code is the highest of the cells."""
        codes = [summary.EXIT_USAGE for cell in self.cells if cell.experiment is None]
        codes += [part.exit_code or summary.EXIT_OK for part in parts.values()]
        worst, lacking = max(codes), sum(code != summary.EXIT_OK for code in codes)
        reason = (
            f"{lacking} of {len(codes)} cells have no capacity; the highest exit code of theirs is {worst}"
        )
        return replace(
            verdict,
            evidence=f"{len(parts)} cells measured, {self.deployments} deployment(s) needed",
            valid=any(part.valid for part in parts.values()),
            passed=not lacking,
            exit_code=worst,
            reason=reason if lacking else "",
        )

    def _ended(self) -> dict[str, PartVerdict]:
        verdicts = {name: result(self.path / name) for name in self.names}
        return {name: verdict for name, verdict in verdicts.items() if verdict is not None}

    def _ratios(self, first: str, verdicts: Parts) -> dict[str, CellRatio]:
        """The known capacities over that of the first, with 95 % intervals, paired on the same requests."""
        replayed = [name for name, each in verdicts.items() if getattr(each, "replays", "") == first]
        original = Original(PlayedWindows.of_run(load_run(self.path / first))) if replayed else None
        ratios = {first: CellRatio(Estimate(1.0, 1.0, 1.0), REFERENCE)}
        for name, verdict in verdicts.items():
            if verdict.exit_code != summary.EXIT_OK or name == first:
                continue
            alone = unpaired_ratio(verdicts[first], verdict)
            if original is None or name not in replayed:
                why = unpaired(self.experiments[first], self.experiments[name])
                ratios[name] = CellRatio(alone, UNPAIRED, why or "it had a search of its own")
            else:
                ratios[name] = cell_ratio(PairedReplays.of(original, load_run(self.path / name)), alone)
        return ratios


class ReplayReference(ReplayWindows):
    """The job of a cell that replays the reference: its windows, then more and the confirmation run."""

    def next_step(self, driver: Driver) -> WindowPlan | Stop:
        driver.replan(seed=self.original.seed)
        step = super().next_step(driver)
        if not isinstance(step, Stop) or step.kind != "budget":
            return step
        # Of other arrivals: with the original's a window of the same number might count twice.
        driver.replan(seed=self.experiment.seed)
        return focus(driver)

    def verdict(self, driver: Driver) -> RunVerdict:
        return replace(super().verdict(driver), replays=self.path.name)


def reference(parts: Parts) -> str | None:
    """The cell that others are compared with: one that was replayed, else the first with a capacity."""
    for verdict in parts.values():
        if isinstance(verdict, RunVerdict) and verdict.replays:
            return verdict.replays
    return next((name for name, part in parts.items() if part.exit_code == summary.EXIT_OK), None)


def cell_ratio(paired: PairedReplays, alone: Estimate) -> CellRatio:
    """The ratio that the pairs show where they show one, else that of the capacities `alone`."""
    ratio = paired.ratio
    if ratio is None or paired.lack:
        return CellRatio(alone, UNPAIRED, paired.lack)
    if ratio.unlike:
        return CellRatio(alone, UNPAIRED, "another bound limits it, so that common requests do not help")
    return CellRatio(ratio.estimate, PAIRED, pairs=paired.whole)
