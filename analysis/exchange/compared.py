"""Sides of a comparison: runs, studies with one capacity, or loads of other tools."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.capacity.paired_ratio import unpaired
from analysis.exchange.foreign import Foreign
from analysis.exchange.readers import is_foreign, load_foreign
from analysis.results import matrix_table, studies, summary
from analysis.results.runs import Run, RunError, load_run
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.study_verdict import StudyVerdict
from analysis.stats.estimate import Estimate
from conf import Experiment, load

SIDES = ("compare", matrix_table.KIND)
"""Studies whose parts are compared; the parts of every other kind measured one thing together."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class ComparedResult:
    """One side of a comparison: its verdict and configuration; a load of another tool has neither."""

    letter: str
    path: Path
    verdict: RunVerdict | StudyVerdict | None = None
    asked: Experiment | None = None
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
        found = self.verdict.capacity if self.verdict else None
        if self.unclaimed or not found:
            return None
        return found.sampling

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
        found = self.verdict.capacity
        if not found:
            return "measured no capacity"
        return "has an open end: a bound, not a number" if found.open_above or found.open_below else ""


def compared_results(paths: Sequence[Path]) -> list[ComparedResult]:
    """The sides that the paths name, in order. Raises RunError for fewer than two, or for a repeated one."""
    found = [one for path in paths for one in _sides(path)]
    known = [one.path.resolve() for one in found if one.foreign is None]
    for path in known:
        if known.count(path) > 1:
            raise RunError(f"{path.name} is given twice; compare needs different runs")
    if len(found) < 2:
        raise RunError(f"compare needs two or more; give another RUN beside {paths[0] if paths else 'it'}")
    if len(found) > len(LETTERS):
        raise RunError(f"compare takes up to {len(LETTERS)} sides, not {len(found)}")
    return [replace(one, letter=letter) for one, letter in zip(found, LETTERS, strict=False)]


def paired_ratio(a: ComparedResult, b: ComparedResult) -> Estimate | None:
    """B over A of the same requests, if the two are the sides of one comparison study; else None."""
    above = a.path.resolve().parent
    if a.foreign or b.foreign or above != b.path.resolve().parent or not studies.is_study(above):
        return None
    study = studies.load_verdict(above)
    found = study.ratio
    if study.study != "compare" or not found or not study.valid:
        return None
    if a.path.resolve().name == study.names[0]:
        return found.estimate
    low, high = found.estimate.ends
    return Estimate(1 / found.estimate.value, high and 1 / high, low and 1 / low)


def unpaired_ratio(a: ComparedResult, b: ComparedResult) -> Estimate | None:
    """B over A of two capacities that were measured apart; None if one claims none."""
    return unpaired(a.capacity, b.capacity) if a.capacity and b.capacity else None


def _sides(path: Path) -> list[ComparedResult]:
    if is_foreign(path):
        return [ComparedResult("", path, foreign=one) for one in load_foreign(path)]
    if not studies.is_study(path):
        run = load_run(path)
        return [ComparedResult("", run.path, run.verdict, run.config, run)]
    study = studies.load_verdict(path)
    if study.study in SIDES:
        return [one for name in study.names if (path / name).is_dir() for one in _sides(path / name)]
    ended = study if study.exit_code is not None else None
    return [ComparedResult("", path, ended, load(base=path / "config.yaml"))]
