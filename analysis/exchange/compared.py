"""Sides of a comparison: runs, studies with one capacity, or loads of other tools."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.capacity.paired_ratio import unpaired
from analysis.exchange import readers
from analysis.exchange.foreign import Foreign
from analysis.results import studies, summary
from analysis.results.locations import WRONG_KIND, refuse_repeated
from analysis.results.runs import Run, RunError, load_run
from analysis.results.verdicts import MATRIX, RunVerdict, StudyVerdict
from analysis.stats.estimate import Estimate
from conf import Experiment, load
from conf.io.one_line import reason

SIDES = ("compare", MATRIX)
"""Studies whose parts are compared; the parts of every other kind measured one thing together."""
OTHERS = "compare needs different runs"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class ComparedResult:
    """One side of a comparison: its verdict and configuration; a load of another tool has neither."""

    letter: str
    path: Path
    verdict: RunVerdict | StudyVerdict | None = None
    experiment: Experiment | None = None
    run: Run | None = None
    foreign: Foreign | None = None

    @property
    def name(self) -> str:
        """Short name; that of a part begins with its study's."""
        if self.foreign:
            return self.foreign.name
        path = self.path.resolve()
        return f"{path.parent.name}/{path.name}" if studies.is_study(path.parent) else path.name

    @property
    def capacity(self) -> Estimate | None:
        """The capacity in QPS per node by sampling noise alone; None where `unclaimed` gives the reason."""
        figures = self.verdict.capacity if self.verdict else None
        return None if self.unclaimed or not figures else figures.sampling

    @property
    def unclaimed(self) -> str:
        """The reason why it allows no ratio; empty for a capacity with two ends."""
        if self.foreign:
            return "is another tool's result, which claims no capacity"
        if self.verdict is None:
            return "did not end"
        if not self.verdict.valid:
            word = summary.word(self.verdict)
            return f"is {word}: {self.verdict.reason or 'no capacity is claimed'}"
        figures = self.verdict.capacity
        if not figures:
            return "measured no capacity"
        return "has an open end: a bound, not a number" if figures.open_above or figures.open_below else ""


def compared_results(paths: Sequence[Path]) -> list[ComparedResult]:
    """The sides that the paths name, in order. Raises RunError for fewer than two, or for a repeated one."""
    sides = [side for path in paths for side in _sides(path)]
    refuse_repeated([side.path for side in sides if side.foreign is None], OTHERS)
    if len(sides) < 2:
        raise RunError(f"compare needs two or more; give another RUN beside {paths[0] if paths else 'it'}")
    if len(sides) > len(LETTERS):
        raise RunError(f"compare takes up to {len(LETTERS)} sides, not {len(sides)}")
    return [replace(side, letter=letter) for side, letter in zip(sides, LETTERS, strict=False)]


def _sides(path: Path) -> list[ComparedResult]:
    if is_foreign(path):
        return [ComparedResult("", path, foreign=side) for side in load_foreign(path)]
    if not studies.is_study(path):
        run = load_run(path)
        return [ComparedResult("", run.path, run.verdict, run.config, run)]
    study = studies.load_verdict(path)
    if study.study in SIDES:
        return [side for name in study.names if (path / name).is_dir() for side in _sides(path / name)]
    ended = study if study.exit_code is not None else None
    return [ComparedResult("", path, ended, load(base=path / "config.yaml"))]


PAIRED = "the same requests on both"


@dataclass(frozen=True, slots=True)
class CapacityRatio:
    """Capacity of B over that of A; `how` says how the two were measured."""

    estimate: Estimate
    how: str

    @property
    def paired(self) -> bool:
        """True for the two sides of a comparison study."""
        return self.how == PAIRED


def compare(a: Run, b: Run) -> CapacityRatio:
    """The ratio of two capacities, of the same requests if they are the sides of a comparison study.

    Raises RunError if one of the two claims no capacity, and for a run beside itself.
    """
    refuse_repeated([a.path, b.path], OTHERS)
    sides = [
        ComparedResult(name, run.path, run.verdict, run.config, run) for name, run in (("A", a), ("B", b))
    ]
    ratio = capacity_ratio(*sides)
    if ratio is None:
        raise RunError(f"no ratio B / A: {refused(*sides)}")
    return ratio


def capacity_ratio(a: ComparedResult, b: ComparedResult) -> CapacityRatio | None:
    """B over A, of the same requests if the two are the sides of one comparison study.

    None where a side claims no capacity.
    """
    first, second = a.path.resolve(), b.path.resolve()
    if not a.foreign and not b.foreign and first.parent == second.parent and studies.is_study(first.parent):
        study = studies.load_verdict(first.parent)
        if study.study == "compare" and study.ratio and study.valid:
            ratio = study.ratio.estimate
            if first.name != study.names[0]:
                low, high = ratio.ends
                ratio = Estimate(1 / ratio.value, high and 1 / high, low and 1 / low)
            return CapacityRatio(ratio, PAIRED)
    if not a.capacity or not b.capacity:
        return None
    return CapacityRatio(unpaired(a.capacity, b.capacity), "measured apart")


def refused(a: ComparedResult, b: ComparedResult) -> str:
    """Why there is no ratio."""
    return "; ".join(f"{side.letter} ({side.name}) {side.unclaimed}" for side in (a, b) if side.unclaimed)


def is_foreign(path: Path | str) -> bool:
    """True for a file, because runs and studies are folders; the content is checked when it is read."""
    return Path(path).is_file()


def load_foreign(path: Path | str) -> list[Foreign]:
    """The loads in a result file, mostly one. Raises RunError for any other file, or one that is cut off."""
    path = Path(path)
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read as text: {reason(error)}") from error
    if not text.strip():
        raise RunError(f"{path} is empty: the tool saved nothing")
    try:
        trees, is_cut = _trees(text, path)
        loads = list(readers.read(trees, path))
    except RunError:
        raise
    except (*WRONG_KIND, OSError) as error:
        raise RunError(
            f"{path} looks like a result of {readers.TOOLS}, but not of a version that is read here: "
            f"{type(error).__name__} {error}"
        ) from error
    note = ("its last line is cut off and left out",) if is_cut else ()
    return [replace(load, notes=(*load.notes, *note)) for load in loads]


def _trees(text: str, path: Path) -> tuple[list[Any], bool]:
    """The JSON values in a text, one or one per line, and True if a cut-off last line was left out."""
    try:
        return [json.loads(text)], False
    except ValueError:
        lines = text.strip().split("\n")  # JSON may hold what splitlines takes for an end
    trees: list[Any] = []
    for number, line in enumerate(lines, 1):
        try:
            trees += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            if number == len(lines) and trees:
                return trees, True
            raise RunError(
                f"{path} is cut off or not JSON, so no result of {readers.TOOLS}: line {number}, {error}"
            ) from error
    return trees, False
