"""Shapes of a node in the order of the nodes that they need, over joint draws of their capacities.

Column d of every table is one draw of all constants, the same one for all shapes: what they share cancels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.planning.sizing import MOST_NODES, FleetCapacity, fleet
from analysis.results.asked import AskedExperiment
from analysis.results.runs import RunError
from analysis.stats.estimate import Estimate
from conf.specs.planning import Margins

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TOLD_APART = 0.95
"""Share of the draws in which one shape must need strictly fewer nodes to be told from another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedShape:
    """One shape: a layout with a budget of tokens per step.

    `nodes` are planned ones, `nodes_at` those at each known figure of the capacity. Shapes with equally many
    share a `rank`. `probability_best` counts a tie in equal parts; `told_apart` is true if it needs strictly
    fewer or more nodes than the first in 95 % of the draws. `assumed` are the constants that nobody measured,
    by config key. `cell` names the part of a study that measured it. A shape before its ranking has no rank,
    nodes or probability.
    """

    name: str
    layout: str
    budget_tokens: int
    shape: str
    gpus: int
    rank: int = 0
    tied: bool = False
    nodes: int = 0
    nodes_at: Mapping[str, int] = field(default_factory=dict)
    qps_per_node: Estimate
    binding: str
    kv_full: bool = False
    probability_best: float = 0.0
    told_apart: bool = False
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


def nodes_of(peak_qps: float, service: FleetCapacity, care: Margins, qps_per_node: Floats) -> Ints:
    """Nodes for the peak at each capacity, by all rules of a plan; `MOST_NODES` where that is not enough."""

    def nodes(qps: float) -> int:
        try:
            return fleet(peak_qps, replace(service, qps_per_node=qps), care)
        except RunError:
            return MOST_NODES

    values, place = np.unique(qps_per_node, return_inverse=True)
    return _monotone(nodes, values)[place].reshape(qps_per_node.shape)


def _monotone(function: Callable[[float], int], values: Floats) -> Ints:
    """The falling function at each of the rising values; called only where its steps are."""
    results = np.zeros(len(values), dtype=np.int64)
    open_ends = [(0, len(values) - 1)]
    results[0], results[-1] = function(float(values[0])), function(float(values[-1]))
    while open_ends:
        first, last = open_ends.pop()
        if results[first] == results[last]:
            results[first : last + 1] = results[first]
        elif last - first > 1:
            middle = (first + last) // 2
            results[middle] = function(float(values[middle]))
            open_ends += [(first, middle), (middle, last)]
    return results


def best_probability(nodes: Ints) -> Floats:
    """The probability of each shape (a row) that it is the best; a draw in which several need equally few
    counts for each of them in equal parts, so that the sum is 1.
    """
    least = nodes == nodes.min(axis=0)
    shares: Floats = (least / least.sum(axis=0)).mean(axis=1)
    return shares


def tie_probability(nodes: Ints) -> float:
    """The share of draws in which two shapes or more need the fewest nodes."""
    return float(((nodes == nodes.min(axis=0)).sum(axis=0) > 1).mean())


def fewer_probability(nodes: Ints, one: int, other: int) -> float:
    """The share of draws in which shape `one` needs strictly fewer nodes than the `other`."""
    return float((nodes[one] < nodes[other]).mean())


def told_apart(nodes: Ints, one: int, other: int) -> bool:
    """True if one of the two needs strictly fewer nodes in nearly all draws."""
    return max(fewer_probability(nodes, one, other), fewer_probability(nodes, other, one)) >= TOLD_APART


def places(planned: Sequence[int], best_qps: Sequence[float]) -> list[tuple[int, int, bool]]:
    """(index, rank, tied) of the shapes in order: the fewest nodes first, then the most QPS per node.

    Shapes that need equally many nodes share a rank.
    """
    order = sorted(range(len(planned)), key=lambda each: (planned[each], -best_qps[each]))
    counts = {nodes: planned.count(nodes) for nodes in planned}
    first = {nodes: place for place, nodes in reversed(list(enumerate((planned[i] for i in order), 1)))}
    return [(each, first[planned[each]], counts[planned[each]] > 1) for each in order]


TEXT, COUNT, FIGURE, TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()
RECOMMENDATION = {
    "prefix_hit": FIGURE,
    **dict.fromkeys(("name", "layout", "shape"), TEXT),
    **dict.fromkeys(("budget_tokens", "gpus", "rank"), COUNT),
    "tied": TRUTH,
    **dict.fromkeys(("nodes", "nodes_at_low", "nodes_at_certified"), COUNT),
    **dict.fromkeys(("nodes_at_estimate", "nodes_at_high"), COUNT),
    **dict.fromkeys(("qps_per_node", "qps_per_node_low", "qps_per_node_high"), FIGURE),
    "qps_per_node_certified": FIGURE,
    "binding": TEXT,
    "kv_full": TRUTH,
    "probability_best": FIGURE,
    "told_apart": TRUTH,
    "draws": COUNT,
    "usd_per_hour": FIGURE,
    **dict.fromkeys(("assumed", "unranked", "reason"), TEXT),
}
"""Columns of the file that --out names: a row for every shape, those without a rank last."""


def recommendation_rows(verdict: RecommendationVerdict) -> pa.Table:
    """A row for every predicted shape at every hit rate; null where there is no figure."""
    out: list[dict[str, object]] = []
    for one in verdict.rankings:
        out += [{"prefix_hit": one.hit, **_shape_columns(shape)} for shape in one.shapes]
        out += [
            {"prefix_hit": one.hit, "name": each.name, "unranked": each.kind, "reason": each.reason}
            for each in one.unranked
        ]
    return pa.Table.from_pylist(out, schema=pa.schema(list(RECOMMENDATION.items())))


def _shape_columns(shape: RankedShape) -> dict[str, object]:
    q = shape.qps_per_node
    return {
        **{name: getattr(shape, name) for name in RECOMMENDATION if hasattr(shape, name)},
        **{f"nodes_at_{end}": nodes for end, nodes in shape.nodes_at.items()},
        "qps_per_node": q.value,
        **{f"qps_per_node_{end}": getattr(q, end) for end in ("low", "high", "certified")},
        "assumed": ", ".join(shape.assumed),
    }
