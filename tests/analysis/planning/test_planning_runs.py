"""analysis.planning of runs: what a plan rests on, what may not be planned on; spares, GPUs and power."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from analysis import RunError, load_run, planning
from analysis.planning import Plan, evidence
from analysis.planning.evidence import MeanLengths, NotPlannable
from analysis.planning.sizing import ScalingEfficiency, ScalingPoint, down_at_once, up_probability
from analysis.results.json_border import from_tree, json_line
from analysis.views.plan import answer
from conf import ConfigError
from tests.support.runs.golden import GOLDEN, sweep_json
from tests.support.runs.planned_sweeps import sweep
from tests.support.words.words import TABLES

WORDS = ["demand.peak_qps=200"]
UNKNOWN = {"ms": None, "bound_ms": 1.0, "passed": None}


def predicted(low: float | None, estimate: float, high: float | None, **more: Any) -> dict[str, Any]:
    """The tree of a prediction of 5600 tokens in and 140 out, half of the input cached."""
    tree: dict[str, Any] = json.loads((GOLDEN.parent / "verdicts" / "prediction.json").read_text())
    rates = {f"{kind}_tokens_per_s_per_node": n * estimate for kind, n in (("input", 5600), ("output", 140))}
    tree["forecast"] |= {"rate_qps_per_node": estimate, "cached_share_of_input": 0.5, **rates}
    least = estimate if low is None and high is None else low
    q = {"value": estimate, "low": least, "high": high, "certified": low}
    tree["capacity"] |= {"qps_per_node": q, "open_above": high is None, "open_below": low is None}
    return tree | more


def test_a_run_says_its_own_lengths() -> None:
    run = load_run(GOLDEN)
    evidence = planning.evidence_of(run)
    used = [row["index"] for row in sweep_json(GOLDEN)["windows"]]
    rows = run.requests(phase="window")
    rows = rows.filter(
        pc.and_(pc.is_in(rows["window_index"], pa.array(used, pa.int16())), pc.equal(rows["status"], "ok"))
    )
    assert evidence.lengths == MeanLengths(5600, 140, 0.0, f"measured, means of {rows.num_rows} answers")
    assert evidence.qps_per_node.low == sweep_json(GOLDEN)["capacity"]["qps_per_node"]["low"]
    assert evidence.ready_minutes is None  # a simulated engine loads no model
    assert evidence.found_by == "simulated" and "simulated, not measured" in evidence.caution


@pytest.mark.slow
def test_the_command_plans_on_a_folder() -> None:
    tree = planning.command([GOLDEN], [*WORDS, "plan.node_hour_usd=16", "demand.mean_qps=100"])
    text = str(answer(tree))
    assert tree.exit_code == 0 and text.startswith(f"SIMULATED  {tree.nodes} nodes (")
    assert "sampling noise of this run alone [2.90, 3.65]" in text
    assert "5600 tokens in, 140 out" in text
    assert from_tree(Plan, json.loads(json_line(tree)), "the plan") == tree


@pytest.mark.parametrize(("change", "code", "message"), TABLES["runs without a capacity"])
def test_nothing_is_planned_without_a_capacity(change: dict[str, Any], code: int, message: str) -> None:
    tree = planning.command([sweep(17.6, 18.4, 19.1, **change)], WORDS)
    assert (tree.valid, tree.exit_code) == (False, code)
    assert str(answer(tree)).startswith(message)
    with pytest.raises(NotPlannable):
        planning.plan(sweep(17.6, 18.4, 19.1, **change), 200)


def test_a_lower_bound_is_planned_with_and_said_and_an_upper_one_is_not() -> None:
    above, below = (sweep(17.6, 18.4, 19.1, exit_code=6) for _ in range(2))
    above["capacity"] |= {"open_above": True}
    plan = planning.command([above], [*WORDS, "plan.basis=estimate", "plan.node_hour_usd=16"])
    assert (plan.exit_code, plan.nodes, plan.basis) == (6, 14, "low")
    assert str(answer(plan)).startswith("PLAN  at most 14 nodes (the capacity is known from below only)")
    assert "at least 17.6 QPS per node" in str(answer(plan))
    assert plan.cost.full_use.per_1k_requests_usd.low is None
    below["capacity"] |= {"open_below": True}
    assert planning.command([below], WORDS).exit_code == 6
    with pytest.raises(NotPlannable, match="only an upper bound"):
        planning.plan(below, 200)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (sweep(1, 2, 3, exit_code=None, study="repeats", names=[], parts=[]), "has not ended"),
        (
            sweep(1, 2, 3, capacity=None, probe={"rate_qps_per_node": 1.0, "ttft": UNKNOWN, "tpot": UNKNOWN}),
            "judged one rate",
        ),
    ],
)
def test_what_is_no_capacity_at_all_is_wrong_usage(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message) as refused:
        planning.command([tree], WORDS)
    assert not isinstance(refused.value, NotPlannable)


def test_a_prediction_is_said_to_be_one() -> None:
    plan = planning.command([predicted(3.3, 5.3, 6.5)], WORDS)
    text = str(answer(plan))
    assert (
        text.startswith("PREDICTED  72 nodes (37 at the upper bound)") and "predicted, not measured" in text
    )
    assert plan.planned_on.lengths.prefix_hit == 0.5


def test_a_prediction_whose_low_end_is_unknown_is_planned_with_its_estimate_if_asked() -> None:
    tree = predicted(None, 5.3, 6.5, exit_code=6)
    with pytest.raises(RunError, match=r"low end of its capacity is unknown; choose plan.basis=estimate"):
        planning.command([tree], WORDS)
    assert planning.command([tree], [*WORDS, "plan.basis=estimate"]).nodes == 45


def test_a_prediction_beyond_its_highest_rate_is_a_lower_bound() -> None:
    tree = predicted(None, 20.0, None, exit_code=6)
    tree["forecast"]["of_rate"] = {"draws": 4, "constants_sampled": [], "kept_probability": 0.75}
    plan = planning.command([tree], WORDS)
    assert "kept at that rate in 75 % of the draws" in str(answer(plan))
    assert (plan.exit_code, plan.service.qps_per_node) == (6, 20.0)


def study(tmp_path: Path, kind: str, code: int = 0) -> Path:
    """A study of one golden part."""
    part = sweep_json(GOLDEN)
    shutil.copytree(GOLDEN, tmp_path / "part-1")
    figures = {"value": 6.0, "low": 5.8, "high": 6.2, "certified": 5.9}
    tree = part | {"run_id": "both", "study": kind, "names": ["part-1"], "exit_code": code}
    tree["parts"] = tree["cells"] = [{"name": "part-1", "at": {}, "exit_code": code, "qps_per_node": figures}]
    tree["capacity"] = {"qps_per_node": figures, "binding": "tpot"}
    (tmp_path / "study.json").write_text(json.dumps(tree))
    return tmp_path


def test_a_study_is_planned_on_its_pooled_capacity(tmp_path: Path) -> None:
    (found,) = evidence.capacities(study(tmp_path, "deployments"))
    assert found.qps_per_node.low == 5.8 and found.lengths
    assert found.lengths.source.startswith("measured")


def test_a_matrix_is_its_cells(tmp_path: Path) -> None:
    (found,) = evidence.capacities(study(tmp_path, "matrix"))
    assert found.name == "part-1" and found.qps_per_node.low != 5.8


def test_a_comparison_is_none_of_these(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"plan on one of its parts: .*/part-1"):
        evidence.capacities(study(tmp_path, "compare"))
    shutil.rmtree(tmp_path / "part-1")
    with pytest.raises(NotPlannable, match="its first cell"):
        evidence.capacities(study(tmp_path, "matrix", code=4))


def at_nodes(nodes: int, efficiency: float = 1.0) -> dict[str, Any]:
    c = 10.0 * efficiency
    return sweep(c * 0.95, c, c / 0.95, nodes)


def test_efficiency_from_several_node_counts() -> None:
    result = planning.scaling([at_nodes(4, 0.9), at_nodes(1), at_nodes(2, 0.96)])
    assert result.fewest == 1 and not result.assumed
    assert result.at(np.array([1, 2, 4])) == pytest.approx([1, 0.96, 0.9])
    between = 2 ** ((np.log2(0.96) + np.log2(0.9)) / 2)
    assert result.at(np.array([2 * 2**0.5])) == pytest.approx([between])  # ln E is linear in ln n
    one = result.figure(4)  # both ends err: 5 % each, independently
    assert one.low == pytest.approx(0.9 * 0.95**2**0.5) and one.high == pytest.approx(0.9 / 0.95**2**0.5)
    assert result.figure(1).low == result.figure(1).high == 1


def test_beyond_what_was_measured_an_assumption_never_saves_a_node() -> None:
    falls, rises = (
        ScalingEfficiency((ScalingPoint(1, 10, 0.02), ScalingPoint(4, qps, 0.02))) for qps in (9.0, 11.0)
    )
    assert falls.at(np.array([16])) == pytest.approx([0.81])
    assert rises.at(np.array([16])) == pytest.approx([1.1])
    with pytest.raises(ValueError, match="not measured"):
        falls.figure(16)


def test_several_runs_of_one_node_count_are_pooled() -> None:
    alone = planning.scaling([at_nodes(1), at_nodes(4, 0.9)]).figure(4)
    together = planning.scaling([at_nodes(1), at_nodes(4, 0.9), at_nodes(4, 0.9), at_nodes(4, 0.9)]).figure(4)
    assert together.value == pytest.approx(0.9, rel=1e-3) and together.low > alone.low


def test_runs_of_other_node_counts_give_the_efficiency_of_a_plan() -> None:
    tree = planning.plan(at_nodes(1), 25, others=[at_nodes(4, 0.9)])
    assert "E(4) = 0.900 [" in str(answer(tree)) and not tree.efficiency.assumed
    assert str(answer(tree)).splitlines()[0].endswith("E(4) = 0.9")
    big = str(planning.plan(at_nodes(1), 300, others=[at_nodes(4, 0.9)]).answer())
    assert "ASSUMED (measured up to 4 nodes)" in big.splitlines()[0]
    assert (
        planning.plan(at_nodes(4, 0.9), 300).nodes
        < planning.plan(at_nodes(4, 0.9), 300, others=[at_nodes(1)]).nodes
    )


def test_nothing_is_assumed_of_the_nodes_that_were_measured() -> None:
    none_spare = planning.Margins(spare_nodes=0)
    alone = planning.plan(at_nodes(1), 5, none_spare)
    assert str(answer(alone)).splitlines()[0].endswith("at the peak; E(1) = 1")
    assert planning.plan(at_nodes(4), 30).efficiency.assumed  # three are left


def test_a_run_that_adds_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is given twice"):
        planning.command([GOLDEN, str(GOLDEN)], WORDS)
    with pytest.raises(RunError, match="run1 has the nodes of run1 and adds nothing to its plan"):
        planning.plan(at_nodes(1), 30, others=[at_nodes(1, 1.1)])


def test_engines_of_other_settings_are_not_one_service() -> None:
    one = planning.evidence_of(load_run(GOLDEN))
    other = replace(one, engine_settings="others")
    with pytest.raises(RunError, match="in engine settings"):
        planning.scaling([one, other])
    planning.scaling([one, replace(one, engine_settings=None)])


def test_a_grid_is_planned_on_its_first_cell_or_not_at_all() -> None:
    answers = [predicted(3.3, 5.3, 6.5, capacity=None), predicted(3.3, 5.3, 6.5)]
    cells = [{"at": {}, "answer": answer} for answer in answers]
    refused = planning.command([{"axes": [], "cells": cells, "exit_code": 0}], WORDS)
    assert refused.exit_code == 4 and "first cell, which a plan stands on, has no" in refused.reason
    assert planning.command([{"axes": [], "cells": cells[::-1], "exit_code": 0}], WORDS).valid


def test_wrong_words_are_refused_before_a_prediction_is_computed(tmp_path: Path) -> None:
    def never() -> dict[str, Any]:
        raise AssertionError("predicted")

    for words in ([], ["demand.peak_qp=3"], [f"demand.hourly={tmp_path / 'none'}"]):
        with pytest.raises(ConfigError):
            planning.command([], words, never)
    plan = planning.command([], WORDS, lambda: predicted(3.3, 5.3, 6.5))
    assert plan.planned_on.found_by == "predicted"


def test_runs_of_another_service_are_refused() -> None:
    other = at_nodes(4) | {"experiment": at_nodes(4)["experiment"] | {"layout": "dp2_tp4_ep4"}}
    for act in (
        planning.scaling,
        lambda runs: planning.plan(runs[0], 30, others=runs[1:]),
    ):
        with pytest.raises(RunError, match="run4 differs from run1 in layout"):
            act([at_nodes(1), other])  # type: ignore[operator]
    moved = at_nodes(4) | {"basis": at_nodes(4)["basis"] | {"input_tokens": 800}}
    with pytest.raises(RunError, match="run4 differs from run1 in lengths"):
        planning.plan(at_nodes(1), 30, others=[moved])


def test_cells_of_a_grid_of_predictions_share_what_is_unknown_of_the_constants() -> None:
    answers = [predicted(3.3, 5.3, 6.5), predicted(3.5, 5.5, 6.9)]
    answers[1]["experiment"] = answers[1]["experiment"] | {"nodes": 2}
    ratios = {"value": 1.0, "low": 1.0, "high": 1.0}, {"value": 5.5 / 5.3, "low": 1.02, "high": 1.06}
    one, two = ({"at": {}, "answer": a, "ratio": r} for a, r in zip(answers, ratios, strict=True))
    result = planning.scaling([one, two]).figure(2)
    assert (result.low, result.high) == pytest.approx((1.018, 1.058), abs=2e-3)
    tree = planning.command([{"axes": ["cluster.nodes"], "cells": [one, two], "exit_code": 0}], WORDS)
    assert "ASSUMED (predicted up to 2 nodes)" in str(answer(tree))


@pytest.mark.parametrize(
    ("nodes", "availability", "target"), [(7078, 0.995, 0.999), (75, 0.995, 0.999), (3, 0.9, 0.9)]
)
def test_as_many_are_down_as_the_binomial_says(nodes: int, availability: float, target: float) -> None:
    down = down_at_once(nodes, availability, target)
    assert up_probability(nodes - down, nodes, availability) >= target
    assert down == 0 or up_probability(nodes - down + 1, nodes, availability) < target


def test_one_spare_for_thousands_of_nodes_is_called_few() -> None:
    tree = planning.command([sweep(4.9, 5.0, 5.1)], ["demand.peak_qps=30000"])
    few = tree.few_spares
    assert few.assumed and few.down_nodes > few.on_average > 30
    assert "1 spare of 7,203 nodes is FEW" in str(answer(tree))
    enough = f"plan.spare_nodes={few.down_nodes}"
    assert planning.command([sweep(4.9, 5.0, 5.1)], ["demand.peak_qps=30000", enough]).few_spares is None


def test_gpus_and_power_stand_beside_nodes() -> None:
    words = ["demand.peak_qps=200", "demand.mean_qps=100", "plan.node_watts=9000"]
    tree = planning.command([sweep(17.6, 18.4, 19.1)], words)
    power = tree.power
    assert tree.gpus == 8 * 14 and power.fleet_kw == pytest.approx(126)
    assert power.kwh_per_day == pytest.approx(24 * 126)
    assert power.wh_per_request == pytest.approx(126e3 / 100 / 3600)
    assert power.kwh_per_1m_output_tokens == pytest.approx(126 / 100 / 3600 * 1e6 / 140)
    strange = sweep(17.6, 18.4, 19.1, experiment={"gpus_per_node": None})
    unknown = planning.command([strange], WORDS)
    assert unknown.gpus is None and unknown.power is None
    assert ", GPUs unknown, for" in str(answer(unknown)) and "plan.node_watts=W" in str(answer(unknown))
