"""The verdict of a study (study.json): several runs that answer one question."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.capacity.paired_ratio import Ratio
from analysis.quality.gate_verdict import GateVerdict
from analysis.results import joint
from analysis.results.types.ladder_figures import LadderFigures
from analysis.results.types.probe_figures import HoldFigures
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.shared_figures import (
    AskedExperiment,
    CapacityFigures,
    RequestCounts,
    WindowRow,
)
from analysis.stats.estimate import Estimate

MATRIX = "matrix"
"""`study` of a measured grid."""
REFERENCE, PAIRED, UNPAIRED = "reference", "paired", "unpaired"
"""The origin of a ratio: 1 by definition, common arrivals, or two independent capacities."""


@dataclass(frozen=True, slots=True)
class DeploymentSpread:
    """The sd between deployments and the mean sd within one, in percent."""

    sd_pct: Estimate
    within_sd_pct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    """One part of a study as study.json names it.

    `qps_per_node` is what it claims; `simulated` is the kind of a simulated interval.
    """

    name: str
    seed: int | None = None
    exit_code: int | None
    reason: str = ""
    qps_per_node: Estimate | None = None
    binding: str | None = None
    simulated: str = ""


@dataclass(frozen=True, slots=True)
class CellRatio:
    """Capacity of a cell over that of the reference: `how` it came about, and `why` it is unpaired."""

    estimate: Estimate
    how: str
    why: str = ""
    pairs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCell:
    """One cell of a measured grid; `exit_code` is None of one that is still to come.

    `qps_per_node` is what the cell claims: of an open end a bound. `simulated` is the kind of a simulated
    interval (`analysis.results.joint`), `sampling_qps` the capacity by the run's sampling noise alone where
    that is another one: the constants are common to all cells.
    """

    name: str
    at: Mapping[str, Any]
    exit_code: int | None
    reason: str = ""
    hold: HoldFigures | None = None
    qps_per_node: Estimate | None = None
    binding: str | None = None
    simulated: str = ""
    sampling_qps: Estimate | None = None
    ratio: CellRatio | None = None

    @classmethod
    def from_verdict(
        cls, name: str, at: Mapping[str, Any], refused: str, verdict: "RunVerdict | StudyVerdict | None"
    ) -> "MatrixCell":
        """A cell before its ratio is known; `refused` says why it makes no experiment."""
        if refused:
            return cls(name=name, at=dict(at), exit_code=2, reason=refused)
        if verdict is None:
            return cls(name=name, at=dict(at), exit_code=None)
        capacity = verdict.capacity if verdict.valid else None
        return cls(
            name=name,
            at=dict(at),
            exit_code=verdict.exit_code,
            reason=verdict.reason,
            hold=verdict.hold,
            qps_per_node=capacity.claimed if capacity else None,
            binding=capacity.binding if capacity else None,
            simulated=joint.kind(verdict.asked, capacity) if capacity else "",
            sampling_qps=capacity.sampling if capacity and capacity.constants else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyVerdict:
    """The verdict of a study; `exit_code` is None while it runs.

    `axes` and `cells` are those of a matrix, `between` and `effects_pct` of deployments, `variation_pct` of
    repeats, `differs` (each key with its value of A and of B) and `ratio` of a comparison, `progressive` of
    the published ladder, `quality` of the quality gate. `hold` is that of the part that ended the study.
    """

    schema_version: int = 1
    study: str
    state: str = "ended"
    verb: str = ""
    run_id: str = ""
    folder: str = ""
    asked: AskedExperiment
    names: tuple[str, ...]
    parts: tuple[PartRow, ...]
    requests: RequestCounts | None = None
    evidence: str = ""
    clock: str = "wall"
    valid: bool = False
    passed: bool = False
    exit_code: int | None
    reason: str = ""
    axes: tuple[str, ...] | None = None
    cells: tuple[MatrixCell, ...] | None = None
    capacity: CapacityFigures | None = None
    between: DeploymentSpread | None = None
    effects_pct: Mapping[str, Estimate] | None = None
    variation_pct: Estimate | None = None
    differs: Mapping[str, tuple[Any, ...]] | None = None
    ratio: Ratio | None = None
    windows: tuple[WindowRow, ...] | None = None
    progressive: LadderFigures | None = None
    remedy: str | None = None
    hold: HoldFigures | None = None
    quality: GateVerdict | None = None
    report: str = ""

    @property
    def is_matrix(self) -> bool:
        """True of a measured grid."""
        return self.study == MATRIX
