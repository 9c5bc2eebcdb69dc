"""The verdict of one run (sweep.json), and of a study, several runs that answer one question (study.json)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from analysis.capacity.paired_ratio import Ratio
from analysis.capacity.posterior import NodeEffects
from analysis.capacity.rules import Check
from analysis.capacity.window_table import CountingBasis
from analysis.quality.gate import GateVerdict
from analysis.results.energy import PowerFigures
from analysis.results.experiment_facts import ExperimentFacts
from analysis.results.figures import CapacityFigures, HoldFigures, ProbeFigures, RequestCounts, WindowRow
from analysis.results.predictions import PredictionVerdict
from analysis.results.published_ladder import LadderFigures
from analysis.stats.estimate import Estimate

MATRIX = "matrix"
"""`study` of a measured grid."""
REFERENCE, PAIRED, UNPAIRED = "reference", "paired", "unpaired"
"""The origin of a ratio: 1 by definition, common arrivals, or two independent capacities."""


@dataclass(frozen=True, slots=True)
class NodeSpread:
    """Distance of each node's capacity from the nodes' mean, in percent of it, and the sd between nodes."""

    between_sd_pct: Estimate
    effects_pct: tuple[Estimate, ...]
    differing: tuple[int, ...]

    @classmethod
    def from_effects(cls, effects: NodeEffects) -> "NodeSpread":
        percent = tuple(effect.times(100) for effect in effects.effects)
        return cls(effects.between.times(100), percent, effects.differing)


@dataclass(frozen=True, slots=True)
class ServiceRecovery:
    """One loss of the service: its reason, the windows that felt it, and the seconds until it was whole."""

    reason: str
    windows: tuple[int, ...]
    waited_s: float


@dataclass(frozen=True, slots=True)
class PlacingPrediction:
    """The prediction that placed the first window of a sweep."""

    qps_per_node: Estimate
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """The verdict of one run. Parts that a verb does not have are None; a void run claims no capacity.

    `checks` are the worst of all windows; `clock` is `wall`, empty of a run that ended early. `replays` names
    the cell whose requests a cell of a matrix got; `report` is the path of report.html once it is written.
    """

    schema_version: int = 1
    experiment: ExperimentFacts
    windows: tuple[WindowRow, ...] = ()
    recoveries: tuple[ServiceRecovery, ...] = ()
    basis: CountingBasis | None = None
    clock: str = ""
    evidence: str = ""
    checks: tuple[Check, ...] | None = None
    progressive: LadderFigures | None = None
    capacity: CapacityFigures | None = None
    nodes: NodeSpread | None = None
    hold: HoldFigures | None = None
    probe: ProbeFigures | None = None
    valid: bool
    passed: bool = False
    exit_code: int
    reason: str = ""
    replays: str = ""
    verb: str = ""
    run_id: str = ""
    folder: str = ""
    prediction: PlacingPrediction | None = None
    requests: RequestCounts | None = None
    power: PowerFigures | None = None
    unreadable: tuple[str, ...] = ()
    report: str = ""

    def __post_init__(self) -> None:
        if self.exit_code not in range(256):
            raise ValueError(f"exit_code {self.exit_code:.3g} is none")


@dataclass(frozen=True, slots=True)
class DeploymentSpread:
    """The sd between deployments and the mean sd within one, in percent."""

    sd_pct: Estimate
    within_sd_pct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """What one part of a study claims; `exit_code` is None of one that is still to come.

    Of an open end `qps_per_node` is a bound. `simulated` is the kind of a simulated interval.
    """

    name: str
    exit_code: int | None
    reason: str = ""
    qps_per_node: Estimate | None = None
    binding: str | None = None
    simulated: str = ""

    @classmethod
    def from_verdict(cls, name: str, verdict: "RunVerdict | StudyVerdict", **more: Any) -> Self:
        """The part `name` by its verdict."""
        capacity = verdict.capacity if verdict.valid else None
        return cls(
            name=name,
            exit_code=verdict.exit_code,
            reason=verdict.reason,
            qps_per_node=capacity.claimed if capacity else None,
            binding=capacity.binding if capacity else None,
            simulated=capacity.kind(verdict.experiment) if capacity else "",
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow(PartResult):
    """One part of a study as study.json names it."""

    seed: int | None = None


@dataclass(frozen=True, slots=True)
class CellRatio:
    """Capacity of a cell over that of the reference: `how` it came about, and `why` it is unpaired."""

    estimate: Estimate
    how: str
    why: str = ""
    pairs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCell(PartResult):
    """One cell of a measured grid.

    `sampling_qps` is the capacity by the run's sampling noise alone where that is another one: the constants
    are common to all cells.
    """

    at: Mapping[str, Any]
    hold: HoldFigures | None = None
    sampling_qps: Estimate | None = None
    ratio: CellRatio | None = None

    @classmethod
    def from_cell(
        cls, name: str, at: Mapping[str, Any], refused: str, verdict: "RunVerdict | StudyVerdict | None"
    ) -> "MatrixCell":
        """A cell before its ratio is known; `refused` says why it makes no experiment."""
        if refused:
            return cls(name=name, at=dict(at), exit_code=2, reason=refused)
        if verdict is None:
            return cls(name=name, at=dict(at), exit_code=None)
        capacity = verdict.capacity if verdict.valid else None
        sampling = capacity.sampling if capacity and capacity.constants else None
        return cls.from_verdict(name, verdict, at=dict(at), hold=verdict.hold, sampling_qps=sampling)


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
    experiment: ExperimentFacts
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


Verdict = RunVerdict | StudyVerdict | PredictionVerdict
"""A verdict on one question; a grid has one for every cell."""
