"""The verdict of a study (study.json): several runs that answer one question."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.capacity.paired_ratio import Ratio
from analysis.quality.gate_verdict import GateVerdict
from analysis.results.types.fields import always
from analysis.results.types.ladder_figures import LadderFigures
from analysis.results.types.probe_figures import HoldFigures
from analysis.results.types.shared_figures import (
    AskedExperiment,
    CapacityFigures,
    QpsFigures,
    RequestCounts,
    WindowRow,
)

MATRIX = "matrix"
"""`study` of a measured grid."""


@dataclass(frozen=True, slots=True)
class PercentFigures:
    """A figure in percent with its 95 % interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class DeploymentSpread:
    """The sd between deployments and the mean sd within one, in percent."""

    sd_pct: PercentFigures
    within_sd_pct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    """One part of a study as study.json names it; `simulated` is the kind of a simulated interval."""

    name: str
    seed: int | None = always(None)
    exit_code: int | None
    reason: str = always("")
    qps_per_node: QpsFigures | None = always(None)
    binding: str | None = always(None)
    simulated: str = ""


@dataclass(frozen=True, slots=True)
class CellRatio:
    """Capacity of a cell over that of the reference: `how` it came about, and `why` it is unpaired."""

    value: float
    low: float
    high: float
    how: str
    why: str = always("")
    pairs: int = always(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCell:
    """One cell of a measured grid; `exit_code` is None of one that is still to come.

    `simulated` is the kind of a simulated interval (`analysis.results.joint`), `sampling_qps` what the run's
    sampling noise alone says, where that is another one: the constants are common to all cells.
    """

    name: str
    at: Mapping[str, Any]
    exit_code: int | None
    reason: str = always("")
    hold: HoldFigures | None = always(None)
    qps_per_node: QpsFigures | None = always(None)
    binding: str | None = always(None)
    open_above: bool | None = always(None)
    open_below: bool | None = always(None)
    simulated: str = ""
    sampling_qps: QpsFigures | None = None
    ratio: CellRatio | None = always(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyVerdict:
    """The verdict of a study; `exit_code` is None while it runs.

    `axes` and `cells` are those of a matrix, `between` and `effects_pct` of deployments, `variation_pct` of
    repeats, `differs` (each key with its value of A and of B) and `ratio` of a comparison, `progressive` of
    the published ladder, `quality` of the quality gate. `hold` is that of the part that ended the study.
    """

    schema_version: int = always(1)
    study: str
    state: str = always("ended")
    verb: str = always("")
    run_id: str = always("")
    folder: str = ""
    asked: AskedExperiment
    names: tuple[str, ...]
    parts: tuple[PartRow, ...]
    requests: RequestCounts | None = None
    evidence: str = always("")
    clock: str = always("wall")
    valid: bool = always(False)
    passed: bool = always(False)
    exit_code: int | None
    reason: str = always("")
    axes: tuple[str, ...] | None = None
    cells: tuple[MatrixCell, ...] | None = None
    capacity: CapacityFigures | None = None
    between: DeploymentSpread | None = None
    effects_pct: Mapping[str, PercentFigures] | None = None
    variation_pct: PercentFigures | None = None
    differs: Mapping[str, tuple[Any, ...]] | None = None
    ratio: Ratio | None = None
    dwells: tuple[WindowRow, ...] | None = None
    progressive: LadderFigures | None = None
    remedy: str | None = None
    hold: HoldFigures | None = None
    quality: GateVerdict | None = None
    report: str = ""

    @property
    def is_matrix(self) -> bool:
        """True of a measured grid."""
        return self.study == MATRIX
