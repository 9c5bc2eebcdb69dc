"""analysis.planning of a simulated run, of too few spares, of GPUs and of power."""

import json
import shutil
from pathlib import Path

import pytest

from analysis import planning
from analysis.planning.sizing import down_at_once, up_probability
from analysis.views.plan import answer
from tests.support.runs.golden import GOLDEN, unsealed, write_json
from tests.support.runs.planned_sweeps import sweep

WORDS = ["demand.peak_qps=200"]


def without_constants(path: Path, why: str) -> Path:
    """The golden run as it would be if the engine model had no answer."""
    run = unsealed(Path(shutil.copytree(GOLDEN, path)))
    tree = json.loads((run / "sweep.json").read_text())
    found = tree["capacity"]
    q = found.pop("by_noise")
    del found["constants"]
    found |= {"qps_per_node": q, "qps_per_replica": q, "constants_unknown": why}
    write_json(run / "sweep.json", tree)
    return run


def test_a_simulated_run_is_planned_with_what_is_unknown_of_the_constants(tmp_path: Path) -> None:
    alone = planning.command([without_constants(tmp_path / "alone", "no such engine")], WORDS)
    joined = planning.command([GOLDEN], WORDS)
    own, both = (tree.planned_on.qps_per_node for tree in (alone, joined))
    assert both.low < own.low < own.value == both.value < own.high < both.high
    assert joined.nodes > alone.nodes
    assert joined.nodes_at["high"] < alone.nodes_at["high"]
    assert joined.nodes_at["estimate"] == alone.nodes_at["estimate"]
    said = str(answer(joined))
    assert said.startswith("SIMULATED  ") and "measured on" not in said.splitlines()[0]
    assert "sampling noise of this run alone [2.90, 3.62]" in said and "joint: the uncertainty" in said


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
    strange = sweep(17.6, 18.4, 19.1, asked={"gpus_per_node": None})
    unknown = planning.command([strange], WORDS)
    assert unknown.gpus is None and unknown.power is None
    assert ", GPUs unknown, for" in str(answer(unknown)) and "plan.node_watts=W" in str(answer(unknown))
