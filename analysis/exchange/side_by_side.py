"""The ratio of two capacities, and rates of two runs that belong together.

A ratio needs two claimed capacities.
"""

from dataclasses import dataclass

from analysis.exchange.compared import ComparedResult, paired_ratio, unpaired_ratio
from analysis.results.runs import Run, RunError
from analysis.stats.estimate import Estimate

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
    if a.path.resolve() == b.path.resolve():
        raise RunError(f"no ratio: {a.name} is given twice; compare needs different runs")
    sides = [
        ComparedResult(name, run.path, run.verdict, run.config, run) for name, run in (("A", a), ("B", b))
    ]
    found = capacity_ratio(*sides)
    if found is None:
        raise RunError(f"no ratio B / A: {refused(*sides)}")
    return found


def capacity_ratio(a: ComparedResult, b: ComparedResult) -> CapacityRatio | None:
    """The ratio of two sides; None where a side claims no capacity."""
    if paired := paired_ratio(a, b):
        return CapacityRatio(paired, PAIRED)
    apart = unpaired_ratio(a, b)
    return CapacityRatio(apart, "measured apart") if apart else None


def refused(a: ComparedResult, b: ComparedResult) -> str:
    """Why there is no ratio."""
    return "; ".join(f"{one.letter} ({one.name}) {one.unclaimed}" for one in (a, b) if one.unclaimed)
