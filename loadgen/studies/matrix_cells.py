"""The cells of a measured grid: their order, their experiments, and the plan as text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conf import ConfigError, Experiment
from conf.matrix import PREFIX, Matrix
from loadgen.predict import grid
from loadgen.search import pacing
from loadgen.studies import comparison_words
from loadgen.studies.comparison_words import OF_BOTH

DEPLOYED = ("cluster", "hardware", "model", "engine", "layout", "routing", "target")
"""Groups that decide what is deployed; an axis of another group changes the load on the same deployment."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination: its values `at` each axis, and its experiment or the reason why it is `refused`."""

    name: str
    at: Mapping[str, Any]
    experiment: Experiment | None
    refused: str = ""

    @property
    def words(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.at.items())


@dataclass(frozen=True, slots=True)
class Cells:
    """All cells in order; cells with the same deployment stand together."""

    axes: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def experiments(self) -> dict[str, Experiment]:
        """The experiments of the cells by name, without refused ones."""
        return {cell.name: cell.experiment for cell in self.cells if cell.experiment is not None}

    @property
    def first(self) -> Experiment:
        """The first cell's experiment."""
        return next(iter(self.experiments.values()))

    @property
    def deployments(self) -> int:
        """Number of services that are deployed one after the other."""
        experiments = list(self.experiments.values())
        again = sum(
            same_service(one, other) for one, other in zip(experiments, experiments[1:], strict=False)
        )
        return len(experiments) - again

    @property
    def load_s(self) -> float:
        """Seconds of load of all sweeps, each as long as its budget."""
        return sum(pacing.swept_s(one) for one in self.experiments.values())


def cells_of_words(words: Matrix, make: Callable[[list[str]], Experiment]) -> Cells:
    """The cells of `words`; `make` makes the experiment of one cell.

    Raises ConfigError if no cell makes one, and for keys that a study has only once.
    """
    for key in words.axes:
        if key in OF_BOTH:
            raise ConfigError(f"{PREFIX}{key}: all cells have the same {key}; give {key}=... alone")
    outer = {key: values for key, values in words.axes.items() if key.partition(".")[0] in DEPLOYED}
    ordered = Matrix(words.shared, {**outer, **words.axes})
    experiments = grid.experiments(lambda each: _checked(make(each)), ordered)
    cells = (
        Cell(f"cell-{number}", at, None, one) if isinstance(one, str) else Cell(f"cell-{number}", at, one)
        for number, (at, one) in enumerate(zip(ordered.cells(), experiments, strict=True), 1)
    )
    return Cells(tuple(ordered.axes), tuple(cells))


def cells_of_experiments(places: Sequence[tuple[Mapping[str, Any], Experiment]]) -> Cells:
    """Cells of experiments that are no grid: each `at` its place, on the same axes as the others.

    Raises ConfigError for one that is more than a sweep.
    """
    cells = tuple(
        Cell(f"cell-{number}", dict(at), _checked(one)) for number, (at, one) in enumerate(places, 1)
    )
    return Cells(tuple(cells[0].at), cells)


def same_service(a: Experiment, b: Experiment) -> bool:
    """True if the deployment for one experiment serves the other too."""
    return all(getattr(a, group) == getattr(b, group) for group in DEPLOYED)


def unpaired(first: Experiment, other: Experiment) -> str:
    """The reason why a cell does not get the first one's requests; empty if it does."""
    apart = comparison_words.unlike(first, other)
    if apart == comparison_words.CHATS:
        return "conversations are not scaled in time, so that it has requests of its own"
    return f"{apart} differs, so that it has requests of its own" if apart else ""


def cell_lines(cells: Cells, refused: bool = False) -> list[str]:
    """The plan: each cell (or each `refused` one) with its action, or the reason why it is refused."""
    total = f"{len(cells.cells)} cells, {cells.deployments} deployment(s), each for all cells that need it"
    return [total, *(_line(cell, cells.first) for cell in cells.cells if cell.refused or not refused)]


def _line(cell: Cell, first: Experiment) -> str:
    if cell.experiment is None:
        does = f"refused: {cell.refused}"
    elif cell.experiment is first:
        does = "a search of its own"
    else:
        does = unpaired(first, cell.experiment) or "the first one's requests, scaled in time, then its own"
    return f"{cell.name}, {cell.words}: {does}"


def _checked(experiment: Experiment) -> Experiment:
    if experiment.search.parts > 1:
        raise ConfigError(
            f"a cell is one sweep, not the {experiment.search.parts} of search.deployments and "
            "search.repeats; add search.deployments=1 search.repeats=1"
        )
    return experiment
