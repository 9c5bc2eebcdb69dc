"""analysis.planning: nodes, spares, hours and money against known answers and their own properties."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import RunError, planning
from analysis.figures.comparison import Nodes
from analysis.planning import Plan
from analysis.planning.evidence import MeanLengths
from analysis.planning.money import cost_at, cost_of, day, read_hourly
from analysis.planning.sizing import (
    ROUNDING,
    FleetCapacity,
    ScalingEfficiency,
    ScalingPoint,
    availability,
    naive,
    needed,
    size,
    up_probability,
)
from analysis.results.json_border import from_tree, json_line
from analysis.stats.estimate import Estimate
from analysis.views.plan import answer
from conf import ConfigError
from conf.compose import load_groups
from conf.specs.planning import Demand, Margins, Planning
from tests.support.runs.planned_sweeps import sweep
from tests.support.words.words import TABLES

LENGTHS = MeanLengths(5600, 140, 0.0, "asked")
FLAT = ScalingEfficiency((ScalingPoint(1, 18.4, 0.02),))
FALLING = ScalingEfficiency((ScalingPoint(1, 10.0, 0.02), ScalingPoint(4, 9.0, 0.02)))

rates = st.floats(0.01, 500)
headrooms = st.floats(0, 0.8)
spares = st.integers(0, 40)


def service(qps_per_node: float, efficiency: ScalingEfficiency = FLAT) -> FleetCapacity:
    return FleetCapacity(qps_per_node, 1, efficiency)


def on_one_line(text: str) -> str:
    """A screen without its line breaks."""
    return " ".join(text.split())


def test_the_example_of_the_planning_page() -> None:
    at_low = size(200, service(17.6), headroom=0.15, spare_nodes=1)
    assert (at_low.nodes, at_low.normal_nodes, at_low.degraded_nodes, at_low.binding) == (
        14,
        14,
        13,
        "normal",
    )
    assert size(200, service(19.1), 0.15, 1).nodes == 13
    assert naive(200, 18.4) == 11
    tree = planning.plan(sweep(17.6, 18.4, 19.1), 200)
    assert str(answer(tree)).startswith(
        "PLAN  14 nodes (13 at the upper bound), 112 GPUs, for 200 QPS at the peak; "
        "E(n) = 1 ASSUMED (measured on 1 node only)\n"
    )
    assert tree.nodes_at == {"low": 14, "certified": 14, "estimate": 13, "high": 13}
    assert from_tree(Plan, json.loads(json_line(tree)), "the plan") == tree


@given(rates, st.floats(2, 60), headrooms, spares, st.sampled_from([FLAT, FALLING]))
@settings(max_examples=60, deadline=None)
def test_the_chosen_nodes_satisfy_both_rules_and_one_less_does_not(
    demand: float, per_node: float, headroom: float, spare: int, efficiency: ScalingEfficiency
) -> None:
    def fits(n: int, slack: float) -> bool:
        e = efficiency.at(np.array([max(n, 1), max(n - spare, 1)]))
        normal = demand <= n * per_node * (1 - headroom) * e[0] * slack
        return bool(normal and n > spare and demand <= (n - spare) * per_node * e[1] * slack)

    result = size(demand, service(per_node, efficiency), headroom, spare)
    assert fits(result.nodes, 1 + 2 * ROUNDING)
    assert not fits(result.nodes - 1, 1)
    assert result.nodes >= max(result.normal_nodes, result.degraded_nodes)


def test_spares_are_not_added_to_headroom() -> None:
    result = size(100, service(10.0), headroom=0.5, spare_nodes=3)
    assert (result.nodes, result.binding) == (20, "normal")  # 20 less 3 still carry 170 QPS
    assert size(100, service(10.0), headroom=0.0, spare_nodes=3).binding == "degraded"


def test_a_whole_multiple_needs_no_node_more() -> None:
    assert needed(0.3, service(0.1)) == 3  # 3 x 0.1 is above 0.3 in floating point
    assert naive(0.3, 0.1) == 3


def test_what_no_number_of_nodes_serves_is_said() -> None:
    falls = ScalingEfficiency((ScalingPoint(1, 10.0, 0.02), ScalingPoint(2, 4.0, 0.02)))
    with pytest.raises(RunError, match=r"at most 10 QPS \(n = 1\), if E\(n\).*split 20 QPS"):
        size(20, service(10.0, falls), 0.0, 0)
    levels_off = ScalingEfficiency((ScalingPoint(1, 10.0, 0.02), ScalingPoint(2, 5.2, 0.02)))
    with pytest.raises(RunError, match=r"if E\(n\) goes on falling as it does up to 2 nodes: split"):
        size(20, service(10.0, levels_off), 0.0, 0)
    with pytest.raises(RunError, match="need more than 100000 nodes"):
        size(1e7, service(1.0), 0.0, 0)


def test_an_availability_is_found_wherever_there_are_nodes_for_it() -> None:
    result = availability(50_000, Margins(node_availability=0.99, target_availability=0.999))
    assert result is not None and result.nodes == 50_576
    assert result.reached >= 0.999 > up_probability(50_000, 50_575, 0.99)
    with pytest.raises(RunError, match="needs more than 100000 nodes"):
        availability(100_000, Margins(node_availability=0.99, target_availability=0.5))


def test_the_probability_of_nodes_that_are_up() -> None:
    assert up_probability(1, 2, 0.9) == pytest.approx(0.99)
    assert up_probability(2, 2, 0.9) == pytest.approx(0.81)
    assert up_probability(3, 2, 0.9) == 0.0


def test_availability_may_ask_for_more_nodes_than_the_rules() -> None:
    care = Margins(headroom=0.0, spare_nodes=0, node_availability=0.9, target_availability=0.9999)
    plan = planning.plan(sweep(9.9, 10.0, 10.1), 100, care)
    assert plan.nodes > plan.rules.nodes == 11
    assert plan.binding == "availability"
    assert "(independent failures only)" in on_one_line(str(plan.answer()))


def test_almost_always_is_not_called_always() -> None:
    care = Margins(spare_nodes=0, node_availability=0.995, target_availability=0.999999999)
    said = on_one_line(str(planning.plan(sweep(9.9, 10.0, 10.1), 4, care).answer()))
    assert "99.9999999 % availability at 99.5 % per node: 1 must be up, so 4 nodes" in said
    assert "which reach 99.999999937 %" in said  # 1 - 0.005^4 = 1 - 6.25e-10, rounded down


def test_the_published_cost() -> None:
    qps = Estimate(18.4, 17.6, 19.1)
    full = cost_at(qps, LENGTHS, 16.0)
    assert full.per_1k_requests_usd.value == pytest.approx(0.242, abs=5e-4)
    assert full.per_1m_output_tokens_usd is not None and full.per_1m_total_tokens_usd is not None
    assert full.per_1m_output_tokens_usd.value == pytest.approx(1.73, abs=5e-3)
    assert full.per_1m_total_tokens_usd.value == pytest.approx(0.042, abs=5e-4)
    one = full.per_1k_requests_usd
    assert one.low == pytest.approx(16 / 19.1 / 3.6) and one.high == pytest.approx(16 / 17.6 / 3.6)
    assert cost_of(Estimate(0.242e-3), LENGTHS, 16.0).per_1k_requests_usd.value == pytest.approx(0.242)


def test_full_use_times_the_share_used_is_what_the_fleet_costs() -> None:
    c = 18.4 * 0.9
    four = sweep(17.6 * 0.9, c, 19.1 * 0.9, nodes=4)
    plan = planning.plan(sweep(17.6, 18.4, 19.1), 45, Margins(node_hour_usd=16.0), others=[four])
    assert plan.nodes == 4 and plan.cost is not None
    full, planned = plan.cost.full_use.per_1k_requests_usd, plan.cost.planned
    assert full.value == pytest.approx(16 / c / 3.6)  # at the efficiency of four nodes, not of one
    assert planned.per_1k_requests_usd.value == pytest.approx(full.value / planned.use)


def test_without_a_price_there_is_no_cost() -> None:
    tree = planning.plan(sweep(17.6, 18.4, 19.1), 200)
    assert tree.cost is None
    assert "plan.node_hour_usd=USD" in str(answer(tree))
    with pytest.raises(ValueError, match="must be positive"):
        planning.cost(sweep(17.6, 18.4, 19.1), 0.0)


def test_an_hours_nodes_are_there_before_it_begins() -> None:
    nodes = [2] * 23 + [5]
    assert day([1.0] * 24, nodes, 0).autoscaled_node_hours == 23 * 2 + 5
    assert day([1.0] * 24, nodes, 20).autoscaled_node_hours == 23 * 2 + 5 + 3 * 20 / 60
    assert day([1.0] * 24, nodes, 90).autoscaled_node_hours == 23 * 2 + 5 + 3 * 1.5
    assert (
        day([1.0] * 24, nodes, 1440).autoscaled_node_hours
        == day([1.0] * 24, nodes, 5).fixed_node_hours
        == 120
    )
    assert day([1.0] * 24, nodes[::-1], 30).autoscaled_node_hours == 23 * 2 + 5 + 1.5  # before midnight


def hourly(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "hours.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "qps\n" + "\n".join(f" {n}.0 " for n in range(24)) + "\n\n",
        "hour,qps\n" + "\n".join(f"{n},{n}" for n in range(24)),
        ",".join(str(n) for n in range(24)),
        "\ufeff" + "\n".join(str(n) for n in range(24)),
        "hour,qps\r\n" + "\r\n".join(f"{n:02d}:00,{n}" for n in range(24)),
    ],
)
def test_a_day_is_read(tmp_path: Path, text: str) -> None:
    assert read_hourly(hourly(tmp_path, text)) == tuple(range(24))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n" * 23, "has 23 rates; write 24"),
        ("1\n" * 23 + "many", "'many' of hour 23 is not a rate"),
        ("1\n" * 23 + "-1", "'-1' of hour 23 is not a rate"),
        ("0\n" * 24, "all rates are zero"),
        ("1,5\n" * 24, "line of hour 0 is '1,5'; write QPS, or 0,QPS"),
        ("0;5\n" * 24, "'0;5' of hour 0 is not a rate"),
    ],
)
def test_a_day_that_is_none_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match="demand.hourly=") as refused:
        read_hourly(hourly(tmp_path, text))
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_demand_by_the_hour(tmp_path: Path) -> None:
    path = hourly(tmp_path, "\n".join(["50"] * 12 + ["200"] * 12))
    words = [f"demand.hourly={path}", "plan.node_hour_usd=16"]
    tree = planning.command([sweep(17.6, 18.4, 19.1)], words)
    assert tree.demand.mean_qps == 125 and tree.nodes == 14 == max(tree.day.nodes)
    assert tree.day.nodes[0] == size(50, service(17.6), 0.15, 1).nodes == 4
    assert tree.day.scale_up_minutes is None
    assert "336 fixed, at least 216.0 autoscaled" in str(answer(tree))
    assert tree.cost.load == "mean"
    by_demand, by_hour = Nodes(tree).figure().axes
    assert "fixed fleet, 14 nodes" in by_hour.get_legend_handles_labels()[1]
    assert [line.get_label() for line in by_demand.get_lines()][2] == "plain division by the estimate"
    led = planning.command([sweep(17.6, 18.4, 19.1)], [*words, "plan.scale_up_minutes=30"])
    assert led.day.autoscaled_node_hours == 12 * (4 + 14) + 10 * 0.5


@pytest.mark.parametrize(("words", "message"), TABLES["words of a plan"])
def test_words_that_cannot_be_are_refused_in_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_groups(Planning, words)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_the_ways_to_say_a_demand() -> None:
    assert Demand(mean_qps=100, peak_factor=1.8).at_peak_qps == pytest.approx(180)
    assert Demand(peak_qps=180, peak_factor=1.8).on_average_qps == pytest.approx(100)
    assert Demand(peak_qps=180, mean_qps=100).on_average_qps == 100
    assert Demand(peak_qps=180).on_average_qps is None
