"""Figures of several runs, of studies and of plans: intervals, ratios, efficiency and nodes."""

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from analysis import figures
from analysis.figures import COMPARE, PLAN, REPEATS, SCALING, NoData, several
from analysis.planning.efficiency import ScalingEfficiency, ScalingPoint
from analysis.stats.pooling import Estimate, pooled
from tests.support.run_in_memory import RunInMemory, concluded


def q(estimate: float, low: float, high: float) -> dict[str, float]:
    return {"estimate": estimate, "low": low, "high": high, "certified": (low + estimate) / 2}


def run(name: str, estimate: float, low: float, high: float, **more: Any) -> RunInMemory:
    sweep = concluded(qps_per_node=q(estimate, low, high), **more)
    return RunInMemory([], sweep=sweep, name=name)


def part(name: str, figures: dict[str, float] | None, **more: Any) -> dict[str, Any]:
    return {"name": name, "qps_per_node": figures, "exit_code": 0, "reason": ""} | more


REPEATED = {
    "study": "repeats",
    "valid": True,
    "parts": [
        part("1", q(5, 4, 6)),
        part("2", q(5.4, 4.5, 6.5)),
        part("3", None, exit_code=4, reason="void"),
    ],
    "capacity": {"qps_per_node": q(5.2, 4.8, 5.6), "open_above": False, "open_below": False},
    "variation_pct": {},
}
MATRIX = {
    "study": "matrix",
    "cells": [
        part("a", q(5, 4, 6), ratio={"how": "reference"}),
        part("b", q(7, 6, 8), ratio={"how": "paired", "value": 1.4, "low": 1.3, "high": 1.5}),
        part("c", q(5, 3, 8), ratio={"how": "unpaired", "value": 1.0, "low": 0.7, "high": 1.4}),
        part("d", q(9, 8, 20), open_above=True, ratio=None),
        part("e", None, exit_code=None, ratio=None),
    ],
}
DAY = {
    "nodes": [1] * 12 + [4] * 12,
    "qps": [1.0] * 24,
    "fixed_node_hours": 96.0,
    "autoscaled_node_hours": 60.0,
}
PLANNED = {
    "valid": True,
    "demand": {"peak_qps": 20.0},
    "answer": {
        "nodes": 4,
        "nodes_at_high": 3,
        "naive_nodes": 3,
        "basis": "low",
        "planned_qps_per_node": 6.0,
    },
    "by_demand": [
        {"demand_qps": 10.0, "nodes": 2, "nodes_at_high": 2, "naive_nodes": 2},
        {"demand_qps": 20.0, "nodes": 4, "nodes_at_high": None, "naive_nodes": 3},
    ],
    "day": DAY,
}
MEASURED = ScalingEfficiency(
    (ScalingPoint(1, 5.0, 0.02), ScalingPoint(2, 4.8, 0.02), ScalingPoint(4, 4.5, 0.02))
)


@pytest.mark.parametrize(
    ("exhibit", "subject"),
    [
        (REPEATS, REPEATED),
        (REPEATS, [run("a", 5, 4, 6), run("b", 6, 5, 7)]),
        (COMPARE, MATRIX),
        (SCALING, MEASURED),
        (PLAN, PLANNED),
    ],
)
def test_each_is_stable_svg_with_words_and_a_table(exhibit: figures.Exhibit, subject: Any) -> None:
    svg = exhibit.svg(subject)
    assert svg == exhibit.svg(subject) and len(svg) < 40_000
    ElementTree.fromstring(svg)
    assert re.search(r"\d", exhibit.alt(subject)) and exhibit.table(subject).num_rows


def test_repeats_show_every_part_and_what_they_say_together() -> None:
    rows = figures.repeats.repeats_table(REPEATED).to_pylist()
    assert [row["part"] for row in rows] == ["1", "2", "3", "mean of the repeats"]
    assert rows[2]["qps_per_node"] is None and rows[2]["why_not"] == "void"
    assert (rows[3]["qps_per_node"], rows[3]["low_qps_per_node"]) == (5.2, 4.8)
    void = REPEATED | {"valid": False}
    assert len(figures.repeats.repeats_table(void)) == 3


def test_runs_are_pooled_by_random_effects() -> None:
    last = figures.repeats.repeats_table([run("a", 5, 4, 6), run("b", 6, 5, 7)]).to_pylist()[-1]
    expected = pooled([Estimate.of_interval(5, 4, 6), Estimate.of_interval(6, 5, 7)])
    assert last["qps_per_node"] == expected.qps.value and last["certified_qps_per_node"] == expected.certified
    only = figures.repeats.repeats_table([run("a", 5, 4, 6), run("b", 6, 5, 7, open_above=True)]).to_pylist()
    assert [row["part"] for row in only] == ["a", "b"] and only[1]["qps_per_node"] is None
    assert only[1]["low_qps_per_node"] == 5 and only[1]["high_qps_per_node"] is None


def test_void_runs_are_no_capacities() -> None:
    void = RunInMemory([], sweep=concluded(valid=False), name="void")
    with pytest.raises(NoData):
        several.parts([void])
    assert several.parts([run("a", 5, 4, 6), void])[1].words == "client_limited"


def test_a_part_that_is_void_or_open_has_no_interval_of_its_own() -> None:
    study = REPEATED | {"parts": [part("1", q(5, 4, 6)), part("2", q(9, 8, 20), exit_code=4, reason="void")]}
    assert [one.words for one in several.parts(study)] == ["5.00 [4.00, 6.00]", "void"]
    ends = part("3", q(9, 8, 20), exit_code=6, reason="open", open_above=True)
    assert several.parts(MATRIX | {"cells": [ends]})[0].words == "at least 8.00"


def test_ratios_of_a_matrix_are_those_it_found() -> None:
    rows = figures.comparison.compare_table(MATRIX).to_pylist()
    assert [row["ratio_to_first"] for row in rows] == [None, 1.4, 1.0, None, None]
    assert [row["ratio_is"] for row in rows] == ["", "paired", "unpaired", "", ""]
    words = COMPARE.alt(MATRIX)
    assert "b carries 1.40 times as much" in words and ": more." in words and "no difference shown" in words


def test_the_ratio_of_a_comparison_is_paired_and_that_of_runs_is_not() -> None:
    study = {
        "study": "compare",
        "valid": True,
        "parts": MATRIX["cells"][:2],
        "ratio": {"value": 0.9, "low": 0.8, "high": 0.95},
    }
    study["parts"] = [part("a", q(5, 4, 6)), part("b", q(7, 6, 8))]
    assert figures.comparison.compare_table(study)["ratio_to_first"].to_pylist() == [None, 0.9]
    assert ": less." in COMPARE.alt(study)
    with pytest.raises(NoData, match="no two capacities"):
        figures.comparison.compare_table(study | {"valid": False})
    runs = figures.comparison.compare_table([run("a", 5, 4, 6), run("b", 6, 5, 7)]).to_pylist()
    assert runs[1]["ratio_to_first"] == pytest.approx(1.2) and runs[1]["ratio_is"] == "unpaired"
    assert runs[1]["ratio_low"] < 1 < runs[1]["ratio_high"]
    with pytest.raises(NoData):
        figures.comparison.compare_table([run("a", 5, 4, 6)])


def test_efficiency_is_one_at_the_first_point_by_definition() -> None:
    rows = figures.scaling.scaling_table(MEASURED).to_pylist()
    assert [row["measured_e"] for row in rows] == pytest.approx([1, 0.96, 0.9])
    assert rows[0]["planned_e_low"] is None and rows[2]["planned_e_low"] < 0.9 < rows[2]["planned_e_high"]
    with pytest.raises(NoData, match="assumption"):
        figures.scaling.scaling_table(ScalingEfficiency((ScalingPoint(1, 5.0, 0.02),)))


def test_a_plan_by_demand_and_by_hour() -> None:
    assert figures.purchase.plan_table(PLANNED)["nodes"].to_pylist() == [2, 4]
    words = PLAN.alt(PLANNED)
    assert (
        "4 nodes" in words and "plain division by the estimate says 3" in words and "60 node-hours" in words
    )
    assert "node-hours" not in PLAN.alt(PLANNED | {"day": None})
    with pytest.raises(NoData, match="void"):
        figures.purchase.plan_table({"valid": False, "reason": "the run is void"})


def test_a_forest_grows_with_its_rows() -> None:
    few, many = MATRIX["cells"][:2], MATRIX["cells"][:2] * 8
    heights = [
        int(re.search(r'height="(\d+)"', COMPARE.svg({"study": "matrix", "cells": cells}))[1])  # type: ignore[index]
        for cells in (few, many)
    ]
    assert heights[1] > 1.5 * heights[0]
