"""conf.matrix and loadgen.predict.root_finding: words of a grid, and where a rising function is zero."""

import math
from collections.abc import Callable

import pytest

from conf import load
from conf.matrix import matrix
from loadgen.predict.capacity import find_root


def test_every_combination_is_a_cell_and_the_last_axis_is_innermost() -> None:
    grid = matrix(["matrix.layout=[a,b]", "seed=3", "matrix.workload.prefix_hit=[0,.5]"])
    assert [grid.words(cell) for cell in grid.cells()] == [
        ["seed=3", "layout=a", "workload.prefix_hit=0"],
        ["seed=3", "layout=a", "workload.prefix_hit=0.5"],
        ["seed=3", "layout=b", "workload.prefix_hit=0"],
        ["seed=3", "layout=b", "workload.prefix_hit=0.5"],
    ]
    assert matrix(["seed=3"]).cells() == [{}]


def test_values_reach_the_experiment_as_they_were_written() -> None:
    grid = matrix(["matrix.slo.tpot_p90_ms=[50,1e2]", "matrix.out=['a: b',plain]", "matrix.rate_qps=[null]"])
    last = load(grid.words(grid.cells()[2]))
    assert (last.slo.tpot_p90_ms, last.out, last.rate_qps) == (100.0, "a: b", None)


CURVES: dict[str, Callable[[float], float]] = {
    "straight": lambda qps: 2 * math.log(qps / 5),
    "flat, then a queue": lambda qps: -1.0 if qps < 4 else min(3.0, 20 * math.log(qps / 5)),
    "a queue's pole": lambda qps: min(3.0, math.log(0.1 / (1 - qps / 5.5))) if qps < 5.5 else 3.0,
    "a step": lambda qps: -0.5 if qps < 5 else 0.7,
}


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES.keys())
@pytest.mark.parametrize("start_qps", [0.2, 4.9, 7.0, 90.0])
def test_the_crossing_is_found_from_anywhere_in_a_few_looks(
    curve: Callable[[float], float], start_qps: float
) -> None:
    looks: list[float] = []

    def excess(qps: float) -> float:
        looks.append(qps)
        return curve(qps)

    result = find_root(excess, start_qps, (0.05, 200), 2.0, 0.002)
    right = 4.95 if curve is CURVES["a queue's pole"] else 5.0
    assert result.side == 0 and result.rate_qps == pytest.approx(right, rel=0.004)
    assert len(looks) <= 25


def test_an_end_of_the_search_is_told_from_a_crossing() -> None:
    kept = find_root(lambda _: -1.0, 5, (0.05, 200), 2.0, 0.002)
    broken = find_root(lambda _: 1.0, 5, (0.05, 200), 2.0, 0.002)
    assert (kept.side, round(kept.rate_qps, 6)) == (1, 200)
    assert (broken.side, round(broken.rate_qps, 6)) == (-1, 0.05)
