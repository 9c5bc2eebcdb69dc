"""A recommendation from capacities of shapes: their order, and the same once a study has measured some."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from analysis.planning.evidence import Evidence, NotPlannable
from analysis.planning.plan import plan
from analysis.planning.verdict import Plan
from analysis.recommendation import ranking
from analysis.recommendation.ranking import (
    Floats,
    RankedShape,
    RecommendationVerdict,
    ShapeRanking,
    UnrankedShape,
)
from analysis.results import studies, summary
from analysis.results.json_border import from_tree
from analysis.results.locations import read_json
from analysis.results.runs import RunError
from analysis.results.verdicts import PAIRED, MatrixCell, StudyVerdict
from analysis.stats.estimate import Estimate
from conf.io.one_line import reason
from conf.specs.planning import Demand, Margins

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
    nodes = ranking.nodes_of(peak_qps, plans[0].service, care, np.exp(ln_qps))
    best = ranking.best_probability(nodes)
    order = ranking.places([one.nodes for one in plans], [one.planned_on.qps_per_node.value for one in plans])
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
            told_apart=each != first and ranking.told_apart(nodes, first, each),
        )
        for each, rank, tied in order
    )
    return ShapeRanking(
        hit=hit,
        shapes=tuple(shapes),
        unranked=(*unranked, *beyond),
        tie_probability=ranking.tie_probability(nodes),
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
    if not path.is_dir():
        return verdict
    return measured(verdict, studies.load_verdict(path), str(path))


def measured(asked: RecommendationVerdict, study: StudyVerdict, folder: str) -> RecommendationVerdict:
    """The recommendation with the ranking of the shapes that `study` has measured.

    Its exit code is that of the study. Raises RunError where no number of nodes serves the peak.
    """
    rankings = [
        one
        for of in asked.rankings
        if (one := _of_cells(of, study.cells or (), asked.peak_qps, asked.care, study))
    ]
    code = summary.EXIT_INTERRUPTED if study.exit_code is None else study.exit_code
    return replace(
        asked,
        clock="wall",
        measured=tuple(rankings),
        folder=folder,
        measured_with=study.asked.engine,
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
        asked=study.asked,
        found_by="simulated" if study.asked.is_modelled else "measured",
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
    first: Floats | None = None
    out = []
    for cell in cells:
        q, ratio = cell.sampling_qps or cell.qps_per_node, cell.ratio
        normal = rng.standard_normal(MEASURED_DRAWS)
        assert q is not None
        if ratio and ratio.how == PAIRED and first is not None:
            drawn = first + math.log(ratio.estimate.value) + _sd(ratio.estimate) * normal
        else:
            drawn = math.log(q.value) + _sd(q) * normal
        first = drawn if first is None else first
        out.append(drawn)
    return out


def _sd(estimate: Estimate) -> float:
    """Sd of ln of an estimate; 0 where an end is open."""
    return 0.0 if estimate.is_open else estimate.ln_sd
