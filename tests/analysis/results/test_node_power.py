"""analysis.results.node_power by known answers: constant power, ramps, gaps, edges, unknowns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis.results.node_power import MOST_GAP_NS, by_node, mean_power
from analysis.rows import records

NS = 1_000_000_000


def sample(
    second: float, gpus: Sequence[float | None] | None, node: str = "a", **more: Any
) -> dict[str, Any]:
    row = {"at": 0, "clock_ns": int(second * NS), "node": node, "idle": False, "gpu_watts": gpus}
    return {**row, "source": "hwmon" if gpus else None, **more}


def table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=records.POWER)


def mean(seconds: Sequence[float], watts: Sequence[float], start_s: float, end_s: float) -> Any:
    at = np.array(seconds, dtype=np.float64) * NS
    return mean_power(at, np.array(watts, dtype=np.float64), start_s * NS, end_s * NS)


def test_a_ramp_has_the_mean_of_the_part_that_is_asked_for() -> None:
    seconds = range(0, 101, 5)
    assert mean(seconds, [10.0 * s for s in seconds], 0, 100).watts == pytest.approx(500)
    assert mean(seconds, [10.0 * s for s in seconds], 42, 58).watts == pytest.approx(500)
    assert mean(seconds, [10.0 * s for s in seconds], 93, 97).watts == pytest.approx(950)


def test_uneven_samples_count_by_the_time_that_they_stand_for() -> None:
    # 100 W for 8 s in two samples, 300 W for 8 s in nine: no mean over samples.
    seconds, watts = [0, 8, 8.001, *range(9, 17)], [100, 100, 300, *[300] * 8]
    assert mean(seconds, watts, 0, 16).watts == pytest.approx(200, rel=1e-3)


def test_a_gap_is_uncovered_and_no_zero() -> None:
    gap_s = MOST_GAP_NS / NS
    kept = [s for s in range(301) if not 100 < s < 101 + gap_s]
    result = mean(kept, [700.0] * len(kept), 0, 300)
    assert result.watts == pytest.approx(700) and result.coverage == pytest.approx(1 - (gap_s + 1) / 300)
    just_covered = [s for s in range(301) if not 100 < s < 100 + gap_s]
    assert mean(just_covered, [700.0] * len(just_covered), 0, 300).coverage == pytest.approx(1)


@pytest.mark.parametrize(("seconds", "end_s"), [([], 10), ([5], 10), ([0, 10], 0)])
def test_too_few_samples_or_no_window_have_no_mean(seconds: list[float], end_s: float) -> None:
    result = mean(seconds, [700.0] * len(seconds), 0, end_s)
    assert result.watts is None and result.coverage == 0


def test_one_gpu_that_falls_silent_makes_the_node_unknown_and_one_that_never_told_does_not() -> None:
    silent = [sample(s, [700.0, 700.0 if s < 50 else None]) for s in range(101)]
    result = by_node(table(silent))[0].gpus_mean(0, 100 * NS)
    assert result.watts is None and result.coverage == pytest.approx(0.49)
    (second_die,) = by_node(table([sample(s, [500.0, None]) for s in range(101)]))
    assert second_die.gpus_mean(0, 100 * NS).watts == pytest.approx(500)
    assert (second_die.told, second_die.gpus) == (1, 2)


def test_the_power_at_rest_is_the_median_so_that_the_end_of_the_warm_up_is_not_in_it() -> None:
    rest = [sample(s, [900.0 if s < 2 else 130.0, 140.0], idle=True) for s in range(10)]
    (node,) = by_node(table([*rest, *[sample(s, [700.0, 700.0]) for s in range(10, 20)]]))
    assert node.idle_watts() == (270.0, None)


def test_nodes_are_apart_and_a_silent_one_says_why() -> None:
    rows = [sample(s, [700.0], node="b", node_watts=1500.0) for s in range(11)]
    rows += [sample(s, None, error="gone") for s in range(11)]
    silent, told = by_node(table(rows))
    assert (silent.name, silent.told, silent.errors, silent.sources) == ("a", 0, ("gone",), ())
    assert silent.gpus_mean(0, 10 * NS).watts is None and silent.idle_watts() == (None, None)
    assert told.meter_mean(0, 10 * NS).watts == pytest.approx(1500) and told.sources == ("hwmon",)
    assert by_node(table([])) == []
