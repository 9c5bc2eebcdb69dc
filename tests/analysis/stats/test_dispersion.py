"""`analysis.stats.dispersion`: known answers for counts in blocks."""

import numpy as np
import pytest

from analysis.stats.dispersion import START, START_DRIFT, START_FREEDOM, Dispersion, overdispersion

REQUESTS, SHARE = 20.0, 0.2


def of(over: list[float]) -> Dispersion:
    blocks = np.full(len(over), REQUESTS)
    found = overdispersion(np.array(over), blocks, np.full(len(over), SHARE))
    assert found is not None
    return found


def test_before_anything_is_seen_the_start_value_is_believed() -> None:
    start = Dispersion.unknown(np.full(5, REQUESTS))
    assert (start.inflation, start.freedom) == (START + START_DRIFT * REQUESTS, START_FREEDOM)


def test_counts_that_are_as_expected_are_taken_as_independent_and_never_as_better() -> None:
    """Their variance is 0. They count as independent, whose inflation is 1, beside the start value."""
    found, start = of([REQUESTS * SHARE] * 40), Dispersion.unknown(np.full(40, REQUESTS))
    seen = found.freedom - start.freedom
    assert seen > 0
    assert found.inflation == pytest.approx((seen + start.freedom * start.inflation) / found.freedom)


def test_neighbours_that_are_alike_are_worth_fewer_requests() -> None:
    high, low = 7.0, 1.0
    in_turn, in_stretches = of([high, low] * 20), of([high] * 10 + [low] * 10 + [high] * 10 + [low] * 10)
    assert in_stretches.inflation > 2 * in_turn.inflation
    assert in_stretches.freedom == in_turn.freedom


def test_without_a_request_there_is_none() -> None:
    assert overdispersion(np.zeros(4), np.zeros(4), np.full(4, SHARE)) is None
