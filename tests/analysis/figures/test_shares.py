"""analysis.figures.latency: the share over each bound, of runs with more than the two p90s."""

from typing import Any

from analysis.figures import RunData
from analysis.figures.exhibit import FAIL, PASS
from analysis.figures.latency import ShareOver
from tests.support.runs.run_in_memory import RunInMemory, concluded, request, window


def run_with(*, bounds: dict[str, float], counted: list[dict[str, Any]]) -> RunInMemory:
    """Two windows of one run, whose further bounds were counted so in both."""
    asked = {"slo": {"ttft_p90_ms": 2000.0, "tpot_p90_ms": None, "at_most_ms": bounds, "joint": 0.9}}
    kept = {"ttft_over": 1, "ttft_determined": 20, "bounds": counted}
    lines = [window(0, 4.0, 0, 10, **kept), window(1, 5.0, 10, 20, **kept)]
    return RunInMemory([request(0, 1.0), request(1, 11.0)], lines, concluded() | {"asked": asked})


def line(bound: str, over: float, determined: float) -> dict[str, Any]:
    return {"bound": bound, "quantile_ms": None, "over": over, "determined": determined, "phi": None}


def test_each_bound_is_drawn_against_the_share_that_it_allows() -> None:
    counted = [line("itl_p99", 1, 20), line("joint_p90", 1, 20)]
    run: Any = run_with(bounds={"itl_p99": 80.0}, counted=counted)
    assert ShareOver.applies(RunData(run))
    shown = ShareOver(RunData(run))
    assert "<svg" in shown.svg()
    table = shown.rows
    assert [(row["bound"], row["over_pct"], row["allowed_pct"]) for row in table[:3]] == [
        ("p90 TTFT", 5.0, 10.0),
        ("p99 ITL", 5.0, 1.0),
        ("90 % of requests within all bounds", 5.0, 10.0),
    ]
    assert "p99 ITL was kept in 0 of 2 valid windows." in shown.alt()


def test_a_window_fails_by_any_bound_and_a_bound_that_was_taken_away_fails_nothing() -> None:
    failing: Any = run_with(bounds={"itl_p99": 80.0}, counted=[line("itl_p99", 1, 20)])
    within: Any = run_with(bounds={"itl_p99": 80.0}, counted=[line("itl_p99", 0, 20)])
    both = RunData(failing), RunData(within)
    assert [data.outcome(data.lines()[0]) for data in both] == [FAIL, PASS]
    assert "tpot" not in RunData(within).bounds_ms
