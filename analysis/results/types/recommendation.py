"""The answer of `recommend`: shapes of a node in order of the nodes a demand needs, and what to measure.

`recommendation.json` of a study holds it too: what was predicted before its shapes were measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.results.types.shared_figures import AskedExperiment
from analysis.stats.estimate import Estimate
from conf.specs.planning import Margins


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedShape:
    """One shape: a layout with a budget of tokens per step.

    `nodes` are planned ones, `nodes_at` those at each known figure of the capacity. Shapes with equally many
    share a `rank`. `probability_best` counts a tie in equal parts; `told_apart` is true if it needs strictly
    fewer or more nodes than the first in 95 % of the draws. `assumed` are the constants that nobody measured,
    by config key. `cell` names the part of a study that measured it.
    """

    name: str
    layout: str
    budget_tokens: int
    shape: str
    gpus: int
    rank: int
    tied: bool
    nodes: int
    nodes_at: Mapping[str, int]
    qps_per_node: Estimate
    binding: str
    kv_full: bool = False
    probability_best: float
    told_apart: bool
    assumed: tuple[str, ...] = ()
    draws: int
    usd_per_hour: float | None = None
    cell: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrankedShape:
    """A shape without a rank, and why: `infeasible`, `not predicted`, `not ranked` (its capacity or nodes
    are unknown), or of a study `no result`."""

    name: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedMeasurement:
    """A command that would help to decide, and how long it loads."""

    command: str
    shapes: tuple[str, ...]
    load_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRanking:
    """All shapes at one hit rate (None: the workload's own), best first.

    `tie_probability` is the share of draws in which several need the fewest nodes, `sd_nodes` the sd of what
    the first needs.
    """

    hit: float | None
    shapes: tuple[RankedShape, ...]
    unranked: tuple[UnrankedShape, ...]
    tie_probability: float
    sd_nodes: float
    proposed: tuple[ProposedMeasurement, ...] = ()

    @property
    def first(self) -> RankedShape:
        """The recommended shape."""
        return self.shapes[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationVerdict:
    """The ranking at each hit rate for a peak of the whole service, and the margins (`care`) of its plan.

    `rankings` are predicted. `measured` has the same of the shapes that a study in `folder` measured; it is
    computed when it is read, from recommendation.json and that study's verdict.
    """

    schema_version: int = 1
    recommendation: bool = True
    asked: AskedExperiment
    clock: str = "virtual"
    peak_qps: float
    care: Margins
    gpus_per_node: int
    rankings: tuple[ShapeRanking, ...]
    measured: tuple[ShapeRanking, ...] = ()
    folder: str = ""
    measured_with: str = ""
    notes: tuple[str, ...] = ()
    valid: bool = True
    passed: bool = True
    exit_code: int
    reason: str = ""
