"""`python -m loadgen recommend`: its answer, files and proposals, what is refused; and measured."""

import json
import shlex
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.csv
import pytest

from analysis.__main__ import main as analysis
from analysis.recommendation import ranking
from analysis.recommendation.ranking import RecommendationVerdict
from analysis.results import summary
from analysis.results.experiment_facts import describe
from analysis.results.json_border import from_tree, to_tree
from analysis.results.verdicts import CellRatio, MatrixCell, StudyVerdict
from analysis.stats.estimate import Estimate
from analysis.views import recommend as recommend_view
from conf import load
from loadgen.__main__ import main
from loadgen.cli import engine_model
from loadgen.cli.shape_words import ShapeQuestion, around
from loadgen.predict.uncertainty import DRAWS
from tests.support.virtual.virtual_fleet import VirtualFleet, service
from tests.support.words.words import over

TWO = "recommend.layouts=[dp1_tp8_ep8,dp2_tp4_ep4]"
WORDS = ["demand.peak_qps=200", TWO, "recommend.budgets=[8192]"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("answer") / "answer.json"
    assert main(["recommend", *WORDS, "plan.node_hour_usd=16", "--out", str(out)]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.fixture
def verdict(tree: dict[str, Any]) -> RecommendationVerdict:
    return from_tree(RecommendationVerdict, tree, "the answer")


@pytest.mark.slow
def test_the_shapes_are_in_order_with_nodes_and_probabilities(verdict: RecommendationVerdict) -> None:
    (ranking,) = verdict.rankings
    first, second = ranking.shapes
    assert (first.layout, second.layout) == ("dp2_tp4_ep4", "dp1_tp8_ep8")
    assert first.nodes < second.nodes and (first.rank, second.rank) == (1, 2)
    assert sum(shape.probability_best for shape in ranking.shapes) == pytest.approx(1.0)
    assert first.probability_best > 0.9 and second.told_apart
    assert first.nodes_at["high"] < first.nodes_at["estimate"] < first.nodes == first.nodes_at["low"]
    assert (first.gpus, first.draws, first.usd_per_hour) == (8, DRAWS, 16.0 * first.nodes)
    q = first.qps_per_node
    assert q.low and q.high and q.low < q.value < q.high
    assert first.nodes - 1 < 200 / (0.85 * q.low) <= first.nodes, "as a plan on the same capacity has it"
    assert first.shape == "2 x TP4/EP4" and "model.step_time.layout_scale" in first.assumed


@pytest.mark.slow
def test_every_proposal_is_a_command_that_runs(
    verdict: RecommendationVerdict, capsys: pytest.CaptureFixture[str]
) -> None:
    proposed = verdict.rankings[0].proposed
    assert 1 <= len(proposed) <= 3
    for one in proposed:
        words = shlex.split(one.command)
        assert words[:3] == ["python", "-m", "loadgen"] and one.load_s > 60
        assert main([*words[3:], "--dry-run"]) == 0
        assert "of load" in capsys.readouterr().out


@pytest.mark.slow
def test_a_saved_answer_is_the_verdict_is_shown_and_cannot_be_recomputed(
    tree: dict[str, Any], verdict: RecommendationVerdict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tree["exit_code"] == 0 and to_tree(verdict) | {"event": "result"} == tree
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(tree))
    assert analysis(["show", str(file)]) == 0
    shown = capsys.readouterr().out
    first = shown.splitlines()[0]
    assert first.startswith("PREDICTED  ") and first.endswith(
        "; dp2_tp4_ep4 (2 x TP4/EP4, 8192 tokens a step)"
    )
    assert analysis(["show", str(file), "--recompute"]) == 2


@pytest.mark.slow
def test_hits_budgets_and_an_infeasible_layout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.cli.recommending.DRAWS", 2)
    out = tmp_path / "answer.csv"
    # Two GPUs of this size do not hold the model: one layout has no rank, and says why.
    words = ["demand.mean_qps=100", "demand.peak_factor=2", "hardware=h100", "recommend.hits=[0,.5]"]
    layouts = ["recommend.layouts=[dp1_tp8_ep8,dp4_tp2_ep2]", "recommend.budgets=[4096,8192]"]
    assert main(["recommend", *words, *layouts, "--json", "--out", str(out)]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert [one["hit"] for one in tree["rankings"]] == [0.0, 0.5] and tree["peak_qps"] == 200
    cold, warm = tree["rankings"]
    assert {shape["budget_tokens"] for shape in cold["shapes"]} == {4096, 8192}
    (refused,) = cold["unranked"]
    assert (refused["name"], refused["kind"]) == ("dp4_tp2_ep2", "infeasible") and refused["reason"]
    best = [max(shape["qps_per_node"]["value"] for shape in one["shapes"]) for one in (cold, warm)]
    assert best[0] < best[1]
    table = pyarrow.csv.read_csv(out)
    assert table.num_rows == 6 and set(table["unranked"].to_pylist()) == {"", "infeasible"}
    assert sorted(set(table["prefix_hit"].to_pylist())) == [0.0, 0.5]


@pytest.mark.slow
def test_what_the_engine_model_does_not_predict_is_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = engine_model.predict

    def partly(experiment: Any, **how: Any) -> Any:
        if experiment.layout.tensor_parallel == 4:
            raise ValueError("no model of this layout yet")
        return known(experiment, **how | {"draws": min(2, how["draws"])})

    monkeypatch.setattr("loadgen.cli.recommending.engine_model.predict", partly)
    monkeypatch.setattr("loadgen.cli.prediction.processes", lambda: nullcontext(map))
    assert main(["recommend", *WORDS]) == 0
    text = capsys.readouterr().out
    assert text.startswith("PREDICTED  ") and "; dp1_tp8_ep8 (1 x TP8/EP8" in text.splitlines()[0]
    assert "not predicted: dp2_tp4_ep4 8192: no model of this layout yet" in text


def test_a_dry_run_lists_the_shapes_and_predicts_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("loadgen.cli.recommending.engine_model.predict")
    assert main(["recommend", "demand.peak_qps=200", TWO, "--dry-run", "--measure"]) == 0
    text = capsys.readouterr().out
    assert "# 6 of 6 shapes are predicted for 200 QPS at the peak" in text
    assert "# dp2_tp4_ep4 16384: 2 x TP4/EP4" in text and "some 6 min of load each" in text


@pytest.mark.slow
def test_bounds_that_no_shape_keeps_are_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["demand.peak_qps=200", "recommend.layouts=[dp1_tp8_ep8]", "recommend.budgets=[8192]"]
    assert main(["recommend", *words, "slo.ttft_p90_ms=20"]) == summary.EXIT_SLO_MISSED
    output = capsys.readouterr().err.splitlines()[-1]
    assert output.startswith("error: no shape has a capacity: no rate keeps p90 TTFT <= 20 ms: ")


@pytest.mark.slow
def test_the_words_of_a_shape_give_every_engine_its_budget() -> None:
    question = ShapeQuestion.of(["demand.peak_qps=1", "recommend.layouts=[1p1d_tp4_ep4,2p1d]"], None)
    result = question.shapes()
    budgets = {(shape.at["layout"], shape.at["max_num_batched_tokens"]) for shape in result}
    assert budgets == {
        *(("1p1d_tp4_ep4", tokens) for tokens in around(4096)),
        *(("2p1d", tokens) for tokens in around(8192)),
    }
    for shape in result:
        assert shape.experiment is not None
        layout, engine = shape.experiment.layout, shape.experiment.engine
        assert layout.prefill is not None
        own = layout.prefill.max_num_batched_tokens or engine.max_num_batched_tokens  # type: ignore[attr-defined]
        assert own == shape.at["max_num_batched_tokens"]


def test_a_real_engine_is_predicted_by_the_engine_model_and_measured_as_it_is() -> None:
    words = ["demand.peak_qps=1", "engine=vllm", "cluster=mi325x_1n", "search=standard", "fleet.drain_s=9"]
    question = ShapeQuestion.of([*words, "model=llama31_405b_fp8"], None)
    assert question.predicting == ["cluster=mi325x_1n", "model=llama31_405b_fp8", "engine=simulated"]
    command = question.command("sweep", ["layout=dp1_tp8"])
    assert "engine=vllm" in command and "search=standard" in command and "demand" not in command


def measured(cells: list[MatrixCell], code: int = 0) -> StudyVerdict:
    parts: Any = {"names": (), "parts": (), "cells": tuple(cells), "folder": "runs/x"}
    return StudyVerdict(study="matrix", experiment=describe(load([])), exit_code=code, **parts)


def cell(number: int, layout: str, qps: float, ratio: CellRatio | None = None) -> MatrixCell:
    figures = Estimate(qps, 0.97 * qps, 1.03 * qps, 0.975 * qps)
    at = {"layout": layout, "max_num_batched_tokens": 8192}
    return MatrixCell(
        name=f"cell-{number}", at=at, exit_code=0, qps_per_node=figures, binding="tpot", ratio=ratio
    )


@pytest.mark.slow
def test_measured_figures_change_the_choice(verdict: RecommendationVerdict) -> None:
    cells = [cell(1, "dp2_tp4_ep4", 3.0), cell(2, "dp1_tp8_ep8", 5.0)]
    result = ranking.measured(verdict, measured(cells), "runs/x")
    (one,) = result.measured
    assert one.first.layout == "dp1_tp8_ep8" and one.first.probability_best > 0.99
    assert one.first.nodes == 49  # 200 / (.97 x 5 x .85), rounded up
    assert "the choice changes from dp2_tp4_ep4 8192" in recommend_view.text(result)


@pytest.mark.slow
def test_a_paired_ratio_tells_apart_what_two_intervals_do_not(verdict: RecommendationVerdict) -> None:
    paired = CellRatio(Estimate(1.03, 1.028, 1.032), "paired")
    cells = [cell(1, "dp2_tp4_ep4", 3.0), cell(2, "dp1_tp8_ep8", 3.09, paired)]
    peak = replace(verdict, peak_qps=3000.0)
    with_pairs = ranking.measured(peak, measured(cells), "x").measured[0]
    alone = ranking.measured(peak, measured([cells[0], replace(cells[1], ratio=None)]), "x").measured[0]
    assert with_pairs.first.probability_best > 0.99 and with_pairs.shapes[1].told_apart
    assert alone.first.probability_best < 0.97 and not alone.shapes[1].told_apart


@pytest.mark.slow
def test_a_study_that_was_cut_short_says_how_to_go_on(verdict: RecommendationVerdict, tmp_path: Path) -> None:
    left = MatrixCell(
        name="cell-2", at={"layout": "dp1_tp8_ep8", "max_num_batched_tokens": 8192}, exit_code=None
    )
    study = measured([cell(1, "dp2_tp4_ep4", 3.0), left], summary.EXIT_INTERRUPTED)
    (tmp_path / ranking.FILE).write_text(json.dumps(to_tree(verdict)))
    (tmp_path / "study.json").write_text(json.dumps(to_tree(study)))
    result = ranking.read(tmp_path)
    assert result.exit_code == summary.EXIT_INTERRUPTED and not result.passed
    text = recommend_view.text(result)
    assert "no result: dp1_tp8_ep8 8192: not measured yet" in text
    assert f"to go on: python -m loadgen resume {tmp_path}" in text


@pytest.mark.slow
def test_what_is_proposed_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One search of one shape, on a virtual clock."""
    monkeypatch.setattr("loadgen.cli.measuring.service", lambda *_: service())
    monkeypatch.setattr("loadgen.run.lifecycle.LoadFleet", VirtualFleet)
    own = "recommend.layouts=[dp1_tp8_ep8]", f"out={tmp_path}", "run=measured", "search=quick"
    code = main(["recommend", *over(WORDS, *own), "--measure", "--json"])
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["exit_code"] == code == 0 and answer["recommendation"]
    assert answer["folder"] == str(tmp_path / "measured")
    result = ranking.read(tmp_path / "measured")
    assert result.exit_code == code and len(result.measured) == 1
    (swept,) = (tmp_path / "measured").glob("*/sweep.json")
    assert json.loads(swept.read_text())["valid"]
    assert analysis(["show", str(tmp_path / "measured")]) == 0
    assert "; dp1_tp8_ep8 (1 x TP8/EP8" in capsys.readouterr().out
