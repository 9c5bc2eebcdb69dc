"""What a plan says of a simulated run, of too few spares, of GPUs and of power."""

from pathlib import Path
from typing import Any

import pytest

from analysis import planning
from analysis.__main__ import main
from analysis.planning.sizing import down_at_once, up_probability
from analysis.results.json_border import from_tree
from analysis.results.types.prediction_verdict import PredictionVerdict
from conf import ConfigError, Experiment
from tests.support.runs.golden import GOLDEN
from tests.support.runs.planned_sweeps import sweep

WORDS = ["demand.peak_qps=200"]


def modelled(low: float | None, high: float | None) -> Any:
    """An engine model whose capacity is 4 QPS per node."""
    tree = sweep(low or 0.0, 4.0, high or 0.0) | {"clock": "virtual"}
    tree["capacity"]["qps_per_node"] |= {"low": low, "high": high}
    del tree["run_id"], tree["basis"]
    verdict = from_tree(PredictionVerdict, tree, "a test")

    def answer(experiment: Experiment) -> PredictionVerdict:
        assert experiment.layout.name == "dp1_tp8_ep8"
        return verdict

    return answer


def refuses(experiment: Experiment) -> PredictionVerdict:
    raise ConfigError("it knows\nno such engine")


def test_a_simulated_run_is_planned_with_what_is_unknown_of_the_constants() -> None:
    alone = planning.command([GOLDEN], [*WORDS, "plan.model_interval=false"], modelled=refuses)
    joined = planning.command([GOLDEN], WORDS, modelled=modelled(3.0, 5.0))
    low = joined["planned_on"]["own_qps_per_node"]["low"]
    own = alone["planned_on"]["own_qps_per_node"]
    assert low < own["estimate"] * 0.75 < own["low"]
    assert low == pytest.approx(own["estimate"] * 0.75, rel=0.02)  # the run's own noise adds little
    assert joined["answer"]["nodes"] > alone["answer"]["nodes"]
    assert joined["nodes_at"]["high"] < alone["nodes_at"]["high"]
    assert joined["nodes_at"]["estimate"] == alone["nodes_at"]["estimate"]
    said = planning.text(joined)
    assert said.startswith("SIMULATED  ") and "measured on" not in said.splitlines()[0]
    assert "this run's sampling noise alone [3.18, 3.55]" in said and "joins" in said
    assert "sampling noise ALONE" in planning.text(alone)


@pytest.mark.parametrize(
    ("model", "why"), [(refuses, "it knows no such engine"), (modelled(None, 5.0), "no interval")]
)
def test_constants_that_stay_unknown_are_said(model: Any, why: str) -> None:
    tree = planning.command([GOLDEN], WORDS, modelled=model)
    said = planning.text(tree)
    assert tree["planned_on"]["constants_ratio"] is None and "ALONE" in said and why in said


def test_a_measured_run_asks_no_engine_model() -> None:
    tree = planning.command([sweep(17.6, 18.4, 19.1)], WORDS, modelled=refuses)
    assert planning.text(tree).startswith("PLAN  14 nodes") and tree["planned_on"]["found_by"] == "measured"


def test_the_command_asks_the_engine_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(GOLDEN), *WORDS]) == 0
    said = capsys.readouterr()
    assert "sampling noise alone [3.18, 3.55]" in said.out and "draws its constants" in said.err


@pytest.mark.parametrize(
    ("nodes", "availability", "target"), [(7078, 0.995, 0.999), (75, 0.995, 0.999), (3, 0.9, 0.9)]
)
def test_as_many_are_down_as_the_binomial_says(nodes: int, availability: float, target: float) -> None:
    down = down_at_once(nodes, availability, target)
    assert up_probability(nodes - down, nodes, availability) >= target
    assert down == 0 or up_probability(nodes - down + 1, nodes, availability) < target


def test_one_spare_for_thousands_of_nodes_is_called_few() -> None:
    tree = planning.command([sweep(4.9, 5.0, 5.1)], ["demand.peak_qps=30000"])
    few = tree["few_spares"]
    assert few["assumed"] and few["down_nodes"] > few["on_average"] > 30
    assert "1 spare of 7,203 nodes is FEW" in planning.text(tree)
    enough = f"plan.spare_nodes={few['down_nodes']}"
    assert planning.command([sweep(4.9, 5.0, 5.1)], ["demand.peak_qps=30000", enough])["few_spares"] is None


def test_gpus_and_power_stand_beside_nodes() -> None:
    words = ["demand.peak_qps=200", "demand.mean_qps=100", "plan.node_watts=9000"]
    tree = planning.command([sweep(17.6, 18.4, 19.1)], words)
    power = tree["power"]
    assert tree["answer"]["gpus"] == 8 * 14 and power["fleet_kw"] == pytest.approx(126)
    assert power["kwh_per_day"] == pytest.approx(24 * 126)
    assert power["wh_per_request"] == pytest.approx(126e3 / 100 / 3600)
    assert power["kwh_per_1m_output_tokens"] == pytest.approx(126 / 100 / 3600 * 1e6 / 140)
    strange = sweep(17.6, 18.4, 19.1, asked={"gpus_per_node": None})
    unknown = planning.command([strange], WORDS)
    assert unknown["answer"]["gpus"] is None and unknown["power"] is None
    assert ", GPUs unknown, for" in planning.text(unknown) and "plan.node_watts=W" in planning.text(unknown)


@pytest.mark.parametrize("watts", ["0", "-5", "nan", "much"])
def test_watts_are_a_number_above_zero(watts: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(GOLDEN), *WORDS, f"plan.node_watts={watts}"]) == 2
    assert "plan.node_watts" in capsys.readouterr().err
