"""analysis.figures of several runs and of studies: intervals, ratios, efficiency, and shares over bounds."""

from typing import Any

import pytest

from analysis.figures import NoData, RunData
from analysis.figures.comparison import Comparison, capacity_rows
from analysis.figures.exhibit import FAIL, PASS
from analysis.figures.latency import ShareOver
from analysis.figures.service import Scaling
from analysis.planning.sizing import ScalingEfficiency, ScalingPoint
from analysis.results.experiment_facts import describe
from analysis.results.json_border import from_tree, to_tree
from analysis.results.verdicts import StudyVerdict
from tests.support.runs.run_in_memory import RunInMemory, concluded, golden_config, request, window


def q(estimate: float, low: float, high: float) -> dict[str, float]:
    return {"value": estimate, "low": low, "high": high, "certified": (low + estimate) / 2}


def run(name: str, estimate: float, low: float, high: float, **more: Any) -> RunInMemory:
    sweep = concluded(qps_per_node=q(estimate, low, high), **more)
    return RunInMemory([], sweep=sweep, name=name)


def part(name: str, figures: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    return {"name": name, "at": {}, "qps_per_node": figures, "exit_code": 0, "reason": ""} | more


def study(tree: dict[str, Any]) -> StudyVerdict:
    rest = {"experiment": to_tree(describe(golden_config())), "names": [], "parts": [], "exit_code": 0}
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
    assert "mean of the repeats: 5.20 [4.80, 5.60]" in compared(REPEATED).alt()
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
    assert "b: 7.00 [6.00, 8.00], 1.40 [1.30, 1.50] times the first (paired)" in compared(MATRIX).alt()


def test_the_ratio_of_a_comparison_is_paired_and_that_of_runs_is_not() -> None:
    ratio = {"estimate": q(0.9, 0.8, 0.95), "limits": {}, "pairs": 3, "correlation": None, "unlike": False}
    tree = {"study": "compare", "valid": True, "ratio": ratio}
    tree |= {"parts": [part("a", q(5, 4, 6)), part("b", q(7, 6, 8))]}
    assert [row["ratio_to_first"] for row in compared(tree).rows] == [None, 0.9]
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


def run_with(*, bounds: dict[str, float], counted: list[dict[str, Any]]) -> RunInMemory:
    """Two windows of one run, whose further bounds were counted so in both."""
    asked = {"slo": {"ttft_p90_ms": 2000.0, "tpot_p90_ms": None, "at_most_ms": bounds, "joint": 0.9}}
    kept = {"ttft_over": 1, "ttft_determined": 20, "bounds": counted}
    lines = [window(0, 4.0, 0, 10, **kept), window(1, 5.0, 10, 20, **kept)]
    return RunInMemory([request(0, 1.0), request(1, 11.0)], lines, concluded() | {"experiment": asked})


def line(bound: str, over: float, determined: float) -> dict[str, Any]:
    return {"bound": bound, "quantile_ms": None, "over": over, "determined": determined, "phi": None}


def test_each_bound_is_drawn_against_the_share_that_it_allows() -> None:
    counted = [line("itl_p99", 1, 20), line("joint_p90", 1, 20)]
    run: Any = run_with(bounds={"itl_p99": 80.0}, counted=counted)
    shown = ShareOver(RunData(run))
    assert "<svg" in shown.svg()
    table = shown.rows
    assert [(row["bound"], row["over_pct"], row["allowed_pct"]) for row in table[:3]] == [
        ("p90 TTFT", 5.0, 10.0),
        ("p99 ITL", 5.0, 1.0),
        ("90 % of requests within all bounds", 5.0, 10.0),
    ]


def test_a_window_fails_by_any_bound_and_a_bound_that_was_taken_away_fails_nothing() -> None:
    failing: Any = run_with(bounds={"itl_p99": 80.0}, counted=[line("itl_p99", 1, 20)])
    within: Any = run_with(bounds={"itl_p99": 80.0}, counted=[line("itl_p99", 0, 20)])
    both = RunData(failing), RunData(within)
    assert [data.outcome(data.lines()[0]) for data in both] == [FAIL, PASS]
    assert "tpot" not in RunData(within).bounds_ms
