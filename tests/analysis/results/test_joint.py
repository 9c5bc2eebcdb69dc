"""analysis.results.figures: a simulated run has one certified value, with the constants, wherever shown."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from analysis import figures, load_run, planning, report
from analysis.results import studies, tables
from analysis.results.figures import NOT_RECORDED, CapacityFigures
from analysis.results.verdicts import RunVerdict, StudyVerdict
from analysis.stats.estimate import Estimate
from analysis.views import side_by_side
from tests.support.runs.golden import GOLDEN, changed, golden
from tests.support.runs.verdict_trees import screen, screen_of_folder

SAMPLING = Estimate(3.0, 2.9, 3.2, 2.92)
CONSTANTS = Estimate(1.0, 0.8, 1.25, 0.83)
ALONE = CapacityFigures(qps_per_node=SAMPLING, qps_per_replica=SAMPLING.per(2), binding="tpot")


def unjoined(verdict: RunVerdict) -> RunVerdict:
    """The verdict as the search alone concludes it."""
    capacity = verdict.capacity
    bare = replace(capacity, qps_per_node=capacity.sampling, constants=None, by_noise=None)
    return replace(verdict, capacity=bare)


def study_of(kind: str, verdict: RunVerdict) -> StudyVerdict:
    names = "a", "b"
    return StudyVerdict(
        study=kind,
        experiment=verdict.experiment,
        names=names,
        parts=tuple(studies.part_row(name, verdict) for name in names),
        valid=True,
        exit_code=0,
    )


def test_distances_in_ln_add_as_squares() -> None:
    result = ALONE.joined(CONSTANTS)
    q = result.qps_per_node
    assert q.value == 3.0 and result.qps_per_replica == q.per(2)
    for end, own, ratio in (
        (q.low, 2.9, 0.8),
        (q.high, 3.2, 1.25),
        (q.certified, 2.92, 0.83),
    ):
        assert math.log(end / 3) ** 2 == pytest.approx(math.log(own / 3) ** 2 + math.log(ratio) ** 2)
    assert result.sampling == SAMPLING


@pytest.mark.parametrize("side", ["open_above", "open_below"])
def test_the_bound_of_an_open_capacity_moves_by_the_constants(side: str) -> None:
    q = replace(ALONE, **{side: True}).joined(CONSTANTS).qps_per_node
    assert (q.low, q.high) == pytest.approx((2.9 * 0.8, 3.2 * 1.25))


def test_without_an_answer_of_the_engine_model_the_reason_stands_there() -> None:
    result = ALONE.joined("no such engine")
    assert result.qps_per_node == SAMPLING and result.constants is None
    assert "no such engine" in result.held and NOT_RECORDED in ALONE.held


def test_a_simulated_run_leads_with_simulated_and_the_joint_figures() -> None:
    first, second, third, *_ = screen(golden()).splitlines()
    assert first == "SIMULATED, VALID  3.32 QPS per node, joint 95 % interval [2.49, 4.20], certified 2.59"
    assert second.startswith("  joint: the uncertainty of the engine model's constants, and sampling noise")
    assert third == "  sampling noise of this run alone: 95 % interval [2.90, 3.65]"


def test_one_run_has_one_certified_value_wherever_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "EXHIBITS", ())  # they take seconds
    page = tmp_path / "page.html"
    report.command([GOLDEN], page)
    other, plan = changed(tmp_path / "other"), planning.plan(load_run(GOLDEN), 200)
    shown = {
        "show": screen_of_folder(GOLDEN),
        "report": page.read_text(),
        "plan": str(plan.answer()),
        "compare": str(side_by_side.answer([GOLDEN, other])),
    }
    for name, text in shown.items():
        assert set(re.findall(r"certified (?:value )?(\d+\.\d+)", text)) == {"2.59"}, name
        assert "2.80" not in text and "SIMULATED" in text, name
    assert shown["plan"].startswith("SIMULATED  ") and "measured on" not in shown["plan"].splitlines()[0]
    assert "joint: the uncertainty" in shown["plan"]
    assert "on MI325X, dp1_tp8_ep8, simulated engine" in shown["plan"]
    assert "sampling noise of this run alone [2.90, 3.65]" in shown["plan"]
    assert plan.planned_on.qps_per_node == golden().capacity.qps_per_node
    (row,) = tables.capacity_table([load_run(GOLDEN)]).to_pylist()
    assert (f"{row['certified_qps_per_node']:.4f}", row["interval_of"]) == ("2.5949", "joint")
    tree = json.loads((GOLDEN / "sweep.json").read_text())
    assert json.dumps(tree["capacity"]).count('"certified": 2.5') == 2  # per node and per replica
    assert json.dumps(tree["capacity"]).count('"certified"') == 4  # also by noise


@pytest.mark.parametrize(("engine", "why"), [("simulated", NOT_RECORDED), ("vllm_emulated", "why not")])
def test_unknown_constants_are_said_where_the_interval_stands(engine: str, why: str) -> None:
    verdict = unjoined(golden())
    if why != NOT_RECORDED:
        verdict = replace(verdict, capacity=verdict.capacity.joined(why))
    verdict = replace(verdict, experiment=replace(verdict.experiment, engine=engine))
    first, second, *_ = screen(verdict).splitlines()
    assert first.startswith(
        "SIMULATED, VALID  3.32 QPS per node, sampling noise alone: 95 % interval [2.90, 3.65]"
    )
    assert second.startswith("  sampling noise of this run alone: what is unknown") and f"({why})" in second


def test_a_measured_run_and_a_void_one_say_nothing_of_it() -> None:
    verdict = unjoined(golden())
    real = screen(replace(verdict, experiment=replace(verdict.experiment, engine="vllm")))
    assert real.startswith(
        "VALID  3.32 QPS per node, 95 % interval [2.90, 3.65], certified 2.96\n  to quote: 2.96"
    )
    assert screen(replace(golden(), valid=False, exit_code=4)).startswith("VOID  no capacity is claimed")


def test_pooled_runs_have_the_constants_in_common() -> None:
    verdict = golden()
    parts = {"a": verdict, "b": verdict}
    pooled = studies.pooled_deployments(study_of("deployments", verdict), parts, 1.0)
    alone = studies.pooled_deployments(
        study_of("deployments", verdict), dict.fromkeys(parts, unjoined(verdict)), 1.0
    )
    assert pooled.capacity.constants == verdict.capacity.constants
    assert pooled.capacity.sampling == alone.capacity.qps_per_node
    first, *lines = screen(pooled).splitlines()
    assert first.startswith("SIMULATED, VALID  3.32 QPS per node, joint 95 % interval [")
    assert lines[1].startswith("  sampling noise of these runs alone: 95 % interval [")
    said = ["a", "3.32", "[2.49,", "4.20]", "2.59", "p90", "TPOT"]
    assert any(line.split()[:7] == said for line in lines)
