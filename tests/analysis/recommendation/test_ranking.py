"""analysis.recommendation: nodes, ties and probabilities over joint draws; rivals, and the answer."""

import numpy as np
import pytest

from analysis.planning.sizing import MOST_NODES, FleetCapacity, ScalingEfficiency, ScalingPoint, fleet
from analysis.recommendation import ranking
from analysis.recommendation.ranking import RankedShape, RecommendationVerdict, ShapeRanking, rivals
from analysis.results.experiment_facts import describe
from analysis.stats.estimate import Estimate
from analysis.views import recommend
from analysis.views.shown import Answer
from conf import load
from conf.specs.planning import Margins

SERVICE = FleetCapacity(1.0, 1, ScalingEfficiency((ScalingPoint(1, 1.0, 0.0),)))
CARE = Margins(headroom=0.1, spare_nodes=1)


def nodes_of(qps: np.ndarray, peak_qps: float = 200.0) -> np.ndarray:
    return ranking.nodes_of(peak_qps, SERVICE, CARE, qps)


def shared_and_own(own: tuple[float, ...], draws: int = 4000) -> np.ndarray:
    """ln capacity of shapes that differ by `own` in the mean, all moved alike by what they share."""
    rng = np.random.default_rng(5)
    together = 0.2 * rng.standard_normal(draws)
    apart = 0.02 * rng.standard_normal((len(own), draws))
    return np.log(4.0) + together + np.array(own)[:, None] + apart


def test_nodes_of_many_draws_are_those_of_a_plan_for_each() -> None:
    qps = np.exp(np.random.default_rng(1).normal(1.2, 0.3, (3, 200)))
    expected = [
        [fleet(200.0, FleetCapacity(one, 1, SERVICE.efficiency), CARE) for one in row] for row in qps.tolist()
    ]
    assert nodes_of(qps).tolist() == expected


def test_a_draw_that_no_number_of_nodes_serves_takes_the_most() -> None:
    assert nodes_of(np.array([1e-6, 100.0]))[0] == MOST_NODES


def test_a_tie_counts_in_equal_parts_and_probabilities_add_up_to_1() -> None:
    nodes = np.array([[10, 10, 12, 9], [10, 11, 12, 10], [11, 12, 12, 11]])
    result, tie = ranking.best_probability(nodes)
    assert result.tolist() == pytest.approx([(0.5 + 1 + 1 / 3 + 1) / 4, (0.5 + 1 / 3) / 4, 1 / 12])
    assert result.sum() == pytest.approx(1.0)
    assert tie == 0.5


def test_what_all_shapes_share_cancels() -> None:
    """Each capacity is unknown by 20 %, but in every draw the second has 10 % more."""
    joint = nodes_of(np.exp(shared_and_own((0.0, 0.1))))
    assert ranking.best_probability(joint)[0][1] > 0.99 and ranking.told_apart(joint, 1, 0)
    rng = np.random.default_rng(2)
    unjoint = nodes_of(np.exp(np.log(4.0) + np.array([[0.0], [0.1]]) + 0.2 * rng.standard_normal((2, 4000))))
    assert 0.5 < ranking.best_probability(unjoint)[0][1] < 0.8 and not ranking.told_apart(unjoint, 1, 0)


def test_places_are_by_nodes_then_by_qps_and_equal_nodes_share_a_rank() -> None:
    result = ranking.places([12, 10, 12, 30], [3.0, 4.0, 3.5, 1.0])
    assert result == [(1, 1, False), (2, 2, True), (0, 2, True), (3, 4, False)]


def shape(layout: str, budget: int, best: float, told_apart: bool = False, nodes: int = 10) -> RankedShape:
    return RankedShape(
        name=f"{layout} {budget}",
        layout=layout,
        budget_tokens=budget,
        shape=f"shape of {layout}",
        gpus=8,
        rank=1,
        nodes=nodes,
        nodes_at={"high": nodes - 20, "estimate": nodes - 10, "low": nodes},
        qps_per_node=Estimate(5.0, 4.0, 6.0),
        binding="tpot",
        probability_best=best,
        told_apart=told_apart,
        draws=48,
    )


def rivals_of(*shapes: RankedShape) -> list[str]:
    result = ShapeRanking(hit=None, shapes=shapes, unranked=(), tie_probability=0.0, sd_nodes=1.0)
    return [each.name for each in rivals(result)]


def test_rivals_are_the_best_of_other_layouts_that_are_not_told_apart() -> None:
    shapes = shape("a", 1, 0.5), shape("a", 2, 0.2), shape("b", 1, 0.05), shape("b", 2, 0.01)
    assert rivals_of(*shapes, shape("c", 1, 0.2), shape("d", 1, 0.3, told_apart=True)) == ["c 1", "b 1"]


def test_rivals_of_a_single_layout_are_its_budgets_and_three_at_most() -> None:
    assert rivals_of(shape("a", 0, 0.9)) == []
    assert rivals_of(*(shape("a", n, 0.1 * n) for n in range(1, 6))) == ["a 5", "a 4", "a 3"]


def answer(*shapes: RankedShape) -> Answer:
    result = ShapeRanking(hit=None, shapes=shapes, unranked=(), tie_probability=0.1, sd_nodes=3.0)
    verdict = RecommendationVerdict(
        experiment=describe(load([])),
        peak_qps=200.0,
        care=Margins(),
        gpus_per_node=8,
        rankings=(result,),
        exit_code=0,
    )
    return recommend.answers(verdict)[0]


@pytest.mark.parametrize(
    ("shapes", "which"),
    [
        (
            [shape("3p1d", 1, 0.4, nodes=61), shape("dp4", 1, 0.5, nodes=62), shape("tp8", 1, 0.0, True, 80)],
            "61 to 62 nodes of 8 GPUs for 200 QPS at the peak; dp4 and 3p1d cannot be told apart",
        ),
        (
            [shape("3p1d", 1, 0.99, nodes=61), shape("tp8", 1, 0.0, True, 80)],
            "61 nodes of 8 GPUs for 200 QPS at the peak; 3p1d (shape of 3p1d, 1 tokens a step)",
        ),
        (
            [shape("3p1d", 1, 0.6, nodes=61), shape("3p1d", 2, 0.4, nodes=61)],
            "61 nodes of 8 GPUs for 200 QPS at the peak; 3p1d (shape of 3p1d); its step budgets cannot be "
            "told apart",
        ),
    ],
)
def test_shapes_that_cannot_be_told_apart_share_the_answer(shapes: list[RankedShape], which: str) -> None:
    assert answer(*shapes).headline == which


def test_the_shapes_stand_by_probability_and_a_point_is_not_its_own_bound() -> None:
    (table,) = answer(shape("3p1d", 1, 0.3, nodes=61), shape("dp4", 1, 0.7, nodes=62)).tables
    rows = [dict(zip(table.heads, row, strict=True)) for row in table.rows]
    assert [row["layout"] for row in rows] == ["dp4", "3p1d"]
    assert (rows[1]["planned"], rows[1]["nodes"]) == ("61", "51 [41, 61]")
