"""Capacities side by side: those of several runs, or of the parts of a study."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.figures.exhibit import NoData
from analysis.figures.words import qps
from analysis.results import joint, matrix_table
from analysis.results.runs import Run
from analysis.results.types.shared_figures import MODELLED
from analysis.stats.estimate import rounded_down

Tree = Mapping[str, Any]
StudyOrRuns = Tree | Sequence[Run]
"""The tree of a study, or runs."""


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """One capacity in QPS per node with its 95 % interval; an open or unknown end is None.

    `ratio` is (value, low, high) over the first part and `how` how it came about; `why` says why there is
    no capacity. `simulated` is the kind of a simulated interval, `sampling` (estimate, low, high) by sampling
    noise alone.
    """

    name: str
    estimate: float | None
    low: float | None
    high: float | None
    certified: float | None
    why: str = ""
    ratio: tuple[float, float, float] | None = None
    how: str = ""
    simulated: str = ""
    sampling: tuple[float, float, float] | None = None

    @property
    def closed(self) -> tuple[float, float, float] | None:
        """Estimate, low and high; None where one of them is not known."""
        if self.estimate is None or self.low is None or self.high is None:
            return None
        return self.estimate, self.low, self.high

    @property
    def known(self) -> bool:
        """True of a capacity, or of one end of it."""
        return self.low is not None or self.high is not None

    @property
    def words(self) -> str:
        """The capacity as text, or why there is none."""
        kind = f" (simulated, {self.simulated})" if self.simulated else ""
        if self.closed:
            return "{} [{}, {}]".format(*map(qps, self.closed)) + kind
        if self.low is not None:
            return f"at least {qps(self.low)}{kind}"
        return f"at most {qps(self.high)}{kind}" if self.high is not None else self.why or "no result"

    @property
    def certified_words(self) -> str:
        """The certified rate as `qps` shows rates, but rounded down."""
        rate = self.certified or 0.0
        return f"certified {qps(rounded_down(rate, 2 if rate < 100 else 0))}"


def parts(subject: StudyOrRuns) -> list[CapacityRow]:
    """The parts of a study or the runs, in their order. Raises NoData where none has a capacity."""
    if isinstance(subject, Mapping):
        found = [_of_row(row) for row in subject.get("cells") or subject["parts"]]
    else:
        found = [of_run(run, name) for run, name in zip(subject, _names(subject), strict=True)]
    if not any(part.known for part in found):
        raise NoData("no part has a capacity")
    return found


def together(subject: StudyOrRuns) -> list[CapacityRow]:
    """The capacity of a whole study as a row, if both ends of it are known; runs have none."""
    if not isinstance(subject, Mapping) or not subject.get("valid"):
        return []
    capacity = subject.get("capacity")
    if not capacity or capacity.get("open_above") or capacity.get("open_below"):
        return []
    rule = "mean of the repeats" if "variation_pct" in subject else "pooled (random effects)"
    simulated = next((row["simulated"] for row in subject["parts"] if row.get("simulated")), "")
    return [_part(rule, capacity["qps_per_node"], {**capacity, "simulated": simulated}, "")]


def _names(runs: Sequence[Run]) -> list[str]:
    """Names of the folders, with the folder above where two are the same."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    return ["/".join(run.path.resolve().parts[-2:]) for run in runs]


def of_run(run: Run, name: str = "capacity") -> CapacityRow:
    """The capacity of a run, or why it claims none."""
    tree, capacity = run.sweep or {}, run.capacity or {}
    why = tree.get("reason") or ("no capacity is claimed" if tree else "the run did not end")
    kind = joint.JOINT if capacity.get("constants") else joint.ALONE
    modelled = (tree.get("asked") or {}).get("engine") in MODELLED
    row = _part(name, capacity.get("qps_per_node"), {**capacity, "simulated": kind if modelled else ""}, why)
    if not row.closed:
        return row
    noise = capacity.get("by_noise") or capacity["qps_per_node"]
    return replace(row, sampling=(row.closed[0], noise["low"], noise["high"]))


def _of_row(row: Tree) -> CapacityRow:
    why = row.get("reason") or ("not measured yet" if row.get("exit_code") is None else "no result")
    # A part keeps the posterior of a void run too, which is no capacity.
    claimed = row.get("exit_code") in (0, 6)
    part = _part(row["name"], row.get("qps_per_node") if claimed else None, row, why)
    ratio = row.get("ratio") or {}
    if ratio.get("how") not in (matrix_table.PAIRED, matrix_table.UNPAIRED):
        return part
    value = ratio["estimate"]
    return replace(part, ratio=(value["value"], value["low"], value["high"]), how=ratio["how"])


def _part(name: str, q: Mapping[str, float] | None, ends: Tree, why: str) -> CapacityRow:
    if q is None:
        return CapacityRow(name, None, None, None, None, why)
    kind = ends.get("simulated", "")
    if ends.get("open_above") or q["high"] is None:
        return CapacityRow(name, None, q["low"], None, None, simulated=kind)
    if ends.get("open_below") or q["low"] is None:
        return CapacityRow(name, None, None, q["high"], None, simulated=kind)
    return CapacityRow(name, q["value"], q["low"], q["high"], q["certified"], simulated=kind)
