"""Shapes of a node in the order of the nodes that they need, predicted, and once a study has measured some.

Column d of every table of nodes is one draw of all constants, the same one for all shapes: what they share
cancels.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analysis.planning.evidence import Evidence, NotPlannable
from analysis.planning.plan import Plan, plan
from analysis.planning.sizing import MOST_NODES, FleetCapacity, fleet_at
from analysis.results import studies, summary
from analysis.results.experiment_facts import ExperimentFacts
from analysis.results.json_border import from_tree
from analysis.results.locations import read_json
from analysis.results.runs import RunError
from analysis.results.verdicts import PAIRED, MatrixCell, StudyVerdict
from analysis.stats.estimate import Estimate
from conf.io.one_line import reason
from conf.specs.planning import Demand, Margins

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
    experiment: ExperimentFacts
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
    values, place = np.unique(qps_per_node, return_inverse=True)
    nodes = _monotone(lambda qps: fleet_at(peak_qps, service, qps, care) or MOST_NODES, values)
    return nodes[place].reshape(qps_per_node.shape)


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


def best_probability(nodes: Ints) -> tuple[Floats, float]:
    """The probability of each shape (a row) that it is the best, and that of a tie.

    A draw in which several need equally few counts for each of them in equal parts, so that the sum is 1.
    """
    least = nodes == nodes.min(axis=0)
    return (least / least.sum(axis=0)).mean(axis=1), float((least.sum(axis=0) > 1).mean())


def told_apart(nodes: Ints, one: int, other: int) -> bool:
    """True if one of the two needs strictly fewer nodes in nearly all draws."""
    fewer, more = ((nodes[a] < nodes[b]).mean() for a, b in ((one, other), (other, one)))
    return bool(max(fewer, more) >= TOLD_APART)


def places(planned: Sequence[int], best_qps: Sequence[float]) -> list[tuple[int, int, bool]]:
    """(index, rank, tied) of the shapes in order: the fewest nodes first, then the most QPS per node.

    Shapes that need equally many nodes share a rank.
    """
    order = sorted(range(len(planned)), key=lambda each: (planned[each], -best_qps[each]))
    ranks = {nodes: 1 + sum(fewer < nodes for fewer in planned) for nodes in planned}
    return [(each, ranks[planned[each]], planned.count(planned[each]) > 1) for each in order]


FILE = "recommendation.json"
"""The file of the prediction in the folder of the study that measured it."""
LAYOUT, BUDGET, HIT = "layout", "max_num_batched_tokens", "prefix_hit"
"""Axes of such a study; that of hits is left out where the workload's own is meant."""
MOST_RIVALS = 3
"""Most shapes that are measured beside the first (our choice)."""
MEASURED_DRAWS = 4000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A shape before its rank, the evidence to plan on, and ln of its capacity in every joint draw.

    The `draws` of the shape are those that were simulated; the others follow from them.
    """

    shape: RankedShape
    evidence: Evidence
    ln_qps: Floats


def name_of(layout: str, budget_tokens: int) -> str:
    """The name of a shape in answers and files."""
    return f"{layout} {budget_tokens}"


def ranked(
    hit: float | None,
    candidates: Sequence[Candidate],
    unranked: Sequence[UnrankedShape],
    peak_qps: float,
    care: Margins,
) -> ShapeRanking:
    """The shapes in order.

    Raises NotPlannable where no shape has a capacity, RunError where no number of nodes serves the peak.
    """
    if not candidates:
        why = unranked[0].reason if unranked else "there is none"
        raise NotPlannable(f"no shape has a capacity: {why}", summary.EXIT_SLO_MISSED)
    kept: list[Candidate] = []
    plans: list[Plan] = []
    beyond: list[UnrankedShape] = []
    for candidate in candidates:
        try:
            plans.append(plan(candidate.evidence, Demand(peak_qps=peak_qps), care))
            kept.append(candidate)
        except RunError as error:
            beyond.append(UnrankedShape(name=candidate.shape.name, kind="not ranked", reason=str(error)))
    if not kept:
        raise RunError(beyond[0].reason)
    ln_qps = np.array([candidate.ln_qps for candidate in kept])
    # Every shape was watched on as many nodes as the others, and E(n) = 1 for all.
    nodes = nodes_of(peak_qps, plans[0].service, care, np.exp(ln_qps))
    best, tie = best_probability(nodes)
    order = places(
        [planned.nodes for planned in plans], [planned.planned_on.qps_per_node.value for planned in plans]
    )
    first = order[0][0]
    shapes = (
        replace(
            kept[each].shape,
            rank=rank,
            tied=tied,
            nodes=plans[each].nodes,
            nodes_at=dict(plans[each].nodes_at),
            usd_per_hour=None if care.node_hour_usd is None else plans[each].nodes * care.node_hour_usd,
            probability_best=float(best[each]),
            told_apart=each != first and told_apart(nodes, first, each),
        )
        for each, rank, tied in order
    )
    return ShapeRanking(
        hit=hit,
        shapes=tuple(shapes),
        unranked=(*unranked, *beyond),
        tie_probability=tie,
        sd_nodes=float(nodes[first].std()),
    )


def rivals(of: ShapeRanking) -> list[RankedShape]:
    """Shapes that are not told apart from the first, the likeliest to be the best one first.

    They are the best of every other layout, for a budget may be changed later; of a single layout all.
    """
    close = [shape for shape in of.shapes[1:] if not shape.told_apart]
    if len({shape.layout for shape in of.shapes}) > 1:
        best = {shape.layout: shape for shape in reversed(close) if shape.layout != of.first.layout}
        close = [shape for shape in close if shape in best.values()]
    return sorted(close, key=lambda shape: -shape.probability_best)[:MOST_RIVALS]


def is_recommendation(path: Path) -> bool:
    """True for the file of a recommendation, and for the folder of a study that measured one."""
    if path.is_dir():
        return (path / FILE).exists()
    try:
        return path.suffix == ".json" and read_json(path).get("recommendation") is True
    except (RunError, OSError):
        return False


def read(path: Path) -> RecommendationVerdict:
    """The recommendation of a file, or of a study's folder with what it has measured so far.

    Raises RunError for any other.
    """
    file = path / FILE if path.is_dir() else path
    try:
        verdict = from_tree(RecommendationVerdict, read_json(file), file)
    except OSError as error:
        raise RunError(f"{file} cannot be read: {reason(error)}") from error
    return measured(verdict, studies.load_verdict(path), str(path)) if path.is_dir() else verdict


def measured(verdict: RecommendationVerdict, study: StudyVerdict, folder: str) -> RecommendationVerdict:
    """The recommendation with the ranking of the shapes that `study` has measured.

    Its exit code is that of the study. Raises RunError where no number of nodes serves the peak.
    """
    rankings = [
        capacity
        for of in verdict.rankings
        if (capacity := _of_cells(of, study.cells or (), verdict.peak_qps, verdict.care, study))
    ]
    code = summary.EXIT_INTERRUPTED if study.exit_code is None else study.exit_code
    return replace(
        verdict,
        clock="wall",
        measured=tuple(rankings),
        folder=folder,
        measured_with=study.experiment.engine,
        passed=code == summary.EXIT_OK,
        exit_code=code,
        reason=study.reason,
    )


def _of_cells(
    predicted: ShapeRanking, cells: Sequence[MatrixCell], peak_qps: float, care: Margins, study: StudyVerdict
) -> ShapeRanking | None:
    """The measured ranking at one hit rate; None while no shape of it has a capacity."""
    shapes = {shape.name: shape for shape in predicted.shapes}
    ours = [cell for cell in cells if cell.at.get(HIT) == predicted.hit and _name(cell) in shapes]
    good = [cell for cell in ours if cell.exit_code == summary.EXIT_OK and cell.qps_per_node]
    if not good:
        return None
    others = [
        UnrankedShape(name=_name(cell), kind="no result", reason=cell.reason or "not measured yet")
        for cell in ours
        if cell not in good
    ]
    candidates = [
        _candidate(shapes[_name(cell)], cell, ln_qps, study)
        for cell, ln_qps in zip(good, _measured_ln_qps(good), strict=True)
    ]
    return ranked(predicted.hit, candidates, others, peak_qps, care)


def _name(cell: MatrixCell) -> str:
    return name_of(str(cell.at.get(LAYOUT)), int(cell.at.get(BUDGET) or 0))


def _candidate(predicted: RankedShape, cell: MatrixCell, ln_qps: Floats, study: StudyVerdict) -> Candidate:
    q = cell.qps_per_node
    assert q is not None
    evidence = Evidence(
        name=predicted.name,
        experiment=study.experiment,
        found_by="simulated" if study.experiment.is_modelled else "measured",
        caution="",
        qps_per_node=q,
        open_above=False,
        lengths=None,
    )
    shape = replace(
        predicted,
        qps_per_node=q,
        binding=cell.binding or "",
        draws=0,
        cell=cell.name,
        kv_full=False,
        assumed=(),
    )
    return Candidate(shape, evidence, ln_qps)


def _measured_ln_qps(cells: Sequence[MatrixCell]) -> list[Floats]:
    """Draws of ln capacity of each cell by its interval; those of a paired cell by its ratio to the first."""
    rng = np.random.default_rng(0)
    draws: list[Floats] = []
    for cell in cells:
        is_paired = cell.ratio and cell.ratio.how == PAIRED and draws
        estimate = cell.ratio.estimate if cell.ratio and is_paired else cell.sampling_qps or cell.qps_per_node
        assert estimate is not None
        sd = 0.0 if estimate.is_open else estimate.ln_sd
        drawn = math.log(estimate.value) + sd * rng.standard_normal(MEASURED_DRAWS)
        draws.append(draws[0] + drawn if is_paired else drawn)
    return draws
