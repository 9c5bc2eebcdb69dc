"""analysis.views.recommend: the answer first, the shapes by probability, no point as its own bound."""

from typing import Any

from analysis.recommendation.ranking import RankedShape, RecommendationVerdict, ShapeRanking
from analysis.results.asked import AskedExperiment
from analysis.stats.estimate import Estimate
from analysis.views import recommend
from conf.specs.bounds import Slo
from conf.specs.planning import Margins

ASKED = AskedExperiment(
    engine="simulated",
    model="m",
    hardware="h",
    layout="l",
    routing="r",
    workload="w",
    nodes=1,
    replicas=1,
    slo=Slo("", 2000.0, 100.0),
)


def shape(layout: str, nodes: int, probability: float, **changes: Any) -> RankedShape:
    own: dict[str, Any] = {"budget_tokens": 8192, "told_apart": False, **changes}
    return RankedShape(
        name=f"{layout} {own['budget_tokens']}",
        layout=layout,
        shape=f"shape of {layout}",
        gpus=8,
        rank=1,
        tied=False,
        nodes=nodes,
        nodes_at={"high": nodes - 20, "estimate": nodes - 10, "low": nodes},
        qps_per_node=Estimate(5.0, 4.0, 6.0),
        binding="tpot",
        probability_best=probability,
        draws=48,
        **own,
    )


def head(*shapes: RankedShape) -> str:
    return answer(*shapes).headline


def answer(*shapes: RankedShape) -> Any:
    ranking = ShapeRanking(hit=None, shapes=shapes, unranked=(), tie_probability=0.1, sd_nodes=3.0)
    verdict = RecommendationVerdict(
        asked=ASKED, peak_qps=200.0, care=Margins(), gpus_per_node=8, rankings=(ranking,), exit_code=0
    )
    return recommend.answers(verdict)[0]


def test_shapes_that_cannot_be_told_apart_share_the_answer() -> None:
    shapes = shape("3p1d", 61, 0.4), shape("dp4_tp2", 62, 0.5), shape("tp8", 80, 0.0, told_apart=True)
    assert head(*shapes) == (
        "61 to 62 nodes of 8 GPUs for 200 QPS at the peak; dp4_tp2 and 3p1d cannot be told apart"
    )


def test_one_clear_shape_is_named() -> None:
    assert head(shape("3p1d", 61, 0.99), shape("tp8", 80, 0.0, told_apart=True)) == (
        "61 nodes of 8 GPUs for 200 QPS at the peak; 3p1d (shape of 3p1d, 8192 tokens a step)"
    )


def test_budgets_of_one_layout_are_one_layout() -> None:
    said = head(shape("3p1d", 61, 0.6), shape("3p1d", 61, 0.4, budget_tokens=4096))
    assert said.endswith("; 3p1d (shape of 3p1d); its step budgets cannot be told apart")


def test_the_shapes_stand_by_probability_and_a_point_is_not_its_own_bound() -> None:
    (table,) = answer(shape("3p1d", 61, 0.3), shape("dp4_tp2", 62, 0.7)).tables
    rows = [dict(zip(table.heads, row, strict=True)) for row in table.rows]
    assert [row["layout"] for row in rows] == ["dp4_tp2", "3p1d"]
    assert (rows[1]["planned"], rows[1]["nodes"]) == ("61", "51 [41, 61]")
