"""analysis.figures of several runs and of studies: intervals, ratios and efficiency."""

from typing import Any

import pytest

from analysis.figures import NoData
from analysis.figures.comparison import Comparison, capacity_rows
from analysis.figures.service import Scaling
from analysis.planning.sizing import ScalingEfficiency, ScalingPoint
from analysis.results.asked import describe
from analysis.results.json_border import from_tree, to_tree
from analysis.results.verdicts import StudyVerdict
from tests.support.runs.run_in_memory import RunInMemory, concluded, golden_config


def q(estimate: float, low: float, high: float) -> dict[str, float]:
    return {"value": estimate, "low": low, "high": high, "certified": (low + estimate) / 2}


def run(name: str, estimate: float, low: float, high: float, **more: Any) -> RunInMemory:
    sweep = concluded(qps_per_node=q(estimate, low, high), **more)
    return RunInMemory([], sweep=sweep, name=name)


def part(name: str, figures: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    return {"name": name, "at": {}, "qps_per_node": figures, "exit_code": 0, "reason": ""} | more


def study(tree: dict[str, Any]) -> StudyVerdict:
    rest = {"asked": to_tree(describe(golden_config())), "names": [], "parts": [], "exit_code": 0}
    return from_tree(StudyVerdict, rest | tree, "a test")


def compared(tree: dict[str, Any]) -> Comparison:
    return Comparison(study(tree))


BOUND = {"value": 8.0, "low": 8.0, "high": None, "certified": None}
REPEATED = {
    "study": "repeats",
    "valid": True,
    "parts": [
        part("1", q(5, 4, 6)),
        part("2", q(5.4, 4.5, 6.5)),
        part("3", None, exit_code=4, reason="void"),
    ],
    "capacity": {"qps_per_node": q(5.2, 4.8, 5.6), "binding": "tpot"},
    "variation_pct": q(5, 4, 6),
}
MATRIX = {
    "study": "matrix",
    "cells": [
        part("a", q(5, 4, 6), ratio={"how": "reference", "estimate": q(1, 1, 1)}),
        part("b", q(7, 6, 8), ratio={"how": "paired", "estimate": q(1.4, 1.3, 1.5)}),
        part("c", q(5, 3, 8), ratio={"how": "unpaired", "estimate": q(1.0, 0.7, 1.4)}),
        part("d", BOUND, exit_code=6, ratio=None),
        part("e", None, exit_code=None, ratio=None),
    ],
}
MEASURED = ScalingEfficiency(
    (ScalingPoint(1, 5.0, 0.02), ScalingPoint(2, 4.8, 0.02), ScalingPoint(4, 4.5, 0.02))
)


def test_repeats_show_every_part_and_what_they_say_together() -> None:
    rows = compared(REPEATED).table().to_pylist()
    assert [row["part"] for row in rows] == ["1", "2", "3", "mean of the repeats"]
    assert rows[2]["qps_per_node"] is None and rows[2]["why_not"] == "void"
    assert (rows[3]["qps_per_node"], rows[3]["low_qps_per_node"]) == (5.2, 4.8)
    assert "All together, mean of the repeats: 5.20 [4.80, 5.60]" in compared(REPEATED).alt()
    assert len(compared(REPEATED | {"valid": False}).rows) == 3


def test_void_runs_are_no_capacities() -> None:
    void = RunInMemory([], sweep=concluded(valid=False), name="void")
    with pytest.raises(NoData):
        capacity_rows([void])
    assert capacity_rows([run("a", 5, 4, 6), void])[1].words == "client_limited"


def test_a_part_that_is_void_or_open_has_no_interval_of_its_own() -> None:
    void = part("2", q(9, 8, 20), exit_code=4, reason="void")
    parts = capacity_rows(study(REPEATED | {"parts": [part("1", q(5, 4, 6)), void]}))
    assert [one.words for one in parts] == ["5.00 [4.00, 6.00]", "void"]
    ends = part("3", BOUND, exit_code=6, reason="open")
    assert capacity_rows(study(MATRIX | {"cells": [ends]}))[0].words == "at least 8.00"


def test_ratios_of_a_matrix_are_those_it_found() -> None:
    rows = compared(MATRIX).table().to_pylist()
    assert [row["ratio_to_first"] for row in rows] == [None, 1.4, 1.0, None, None]
    assert [row["ratio_is"] for row in rows] == ["", "paired", "unpaired", "", ""]
    words = compared(MATRIX).alt()
    assert "b carries 1.40 times as much" in words and ": more." in words and "no difference shown" in words


def test_the_ratio_of_a_comparison_is_paired_and_that_of_runs_is_not() -> None:
    ratio = {"estimate": q(0.9, 0.8, 0.95), "limits": {}, "pairs": 3, "correlation": None, "unlike": False}
    tree = {"study": "compare", "valid": True, "ratio": ratio}
    tree |= {"parts": [part("a", q(5, 4, 6)), part("b", q(7, 6, 8))]}
    assert [row["ratio_to_first"] for row in compared(tree).rows] == [None, 0.9]
    assert ": less." in compared(tree).alt()
    assert [row["ratio_to_first"] for row in compared(tree | {"valid": False}).rows] == [None, None]
    runs = Comparison([run("a", 5, 4, 6), run("b", 6, 5, 7)]).rows
    assert runs[1]["ratio_to_first"] == pytest.approx(1.2) and runs[1]["ratio_is"] == "unpaired"
    assert runs[1]["ratio_low"] < 1 < runs[1]["ratio_high"]


def test_efficiency_is_one_at_the_first_point_by_definition() -> None:
    rows = Scaling(MEASURED).rows
    assert [row["e"] for row in rows] == pytest.approx([1, 0.96, 0.9])
    assert rows[0]["e_low"] is None and rows[2]["e_low"] < 0.9 < rows[2]["e_high"]
    with pytest.raises(NoData, match="assumption"):
        Scaling(ScalingEfficiency((ScalingPoint(1, 5.0, 0.02),)))
