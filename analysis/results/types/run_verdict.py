"""The verdict of one run folder (sweep.json): of a sweep, a probe, a required rate, or a run that failed."""

from dataclasses import dataclass

from analysis.capacity.check import Check
from analysis.capacity.node_effects import NodeEffects
from analysis.capacity.window_table import CountingBasis
from analysis.results.types.ladder_figures import LadderFigures
from analysis.results.types.power_figures import PowerFigures
from analysis.results.types.probe_figures import HoldFigures, ProbeFigures
from analysis.results.types.shared_figures import (
    AskedExperiment,
    CapacityFigures,
    RequestCounts,
    WindowRow,
)
from analysis.stats.estimate import Estimate


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
    asked: AskedExperiment
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
