"""analysis.quality.confidence_sequence: ends by betting are seldom wrong, however often one looks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.quality.confidence_sequence import MeanEnd, Which, grid

SPAN = (-1.0, 1.0)
MARGIN = 0.01
MEANS = grid(MARGIN, *SPAN)
VALUES = st.lists(st.floats(-1, 1), min_size=1, max_size=60)


def end(which: Which, alpha: float = 0.025) -> MeanEnd:
    return MeanEnd(which, SPAN, MEANS, alpha)


def fed(which: Which, values: list[float] | np.ndarray) -> MeanEnd:
    result = end(which)
    for value in values:
        result.feed(value)
    return result


@given(st.floats(1e-4, 0.5), st.floats(-1, -0.01), st.floats(0.51, 1))
def test_the_grid_holds_the_margin_exactly_and_no_bound(margin: float, low: float, high: float) -> None:
    means = grid(margin, low, high)
    assert margin in means and 0.0 in means
    assert low < means[0] and means[-1] < high and (np.diff(means) > 0).all()
    assert means[-1] > high / 1.03 or means[-1] > high - margin / 50


@pytest.mark.parametrize("seen, needed", [(0, 432), (1, 700), (2, 950)])
def test_what_was_hardly_ever_seen_is_soon_shown_to_be_rarer_than_the_margin(seen: int, needed: int) -> None:
    """The binomial's fixed sizes are 368, 557 and 719; looking at every value costs the rest."""
    result = end("high")
    for number in range(needed):
        result.feed(1.0 if number in (100, 200)[:seen] else 0.0)
    assert float(result.end) <= MARGIN
    assert float(fed("high", np.zeros(431)).end) > MARGIN


@given(VALUES)
def test_the_lower_end_is_the_upper_one_of_the_values_turned_around(values: list[float]) -> None:
    means = np.unique(np.concatenate([MEANS, -MEANS]))
    low, high = MeanEnd("low", SPAN, means, 0.025), MeanEnd("high", SPAN, means, 0.025)
    for value in values:
        low.feed(value)
        high.feed(-value)
    assert float(low.end) == pytest.approx(-float(high.end), abs=2e-2 * max(MARGIN, abs(float(low.end))))


@given(VALUES, st.sampled_from(["low", "high"]))
def test_the_means_that_are_left_are_an_interval(values: list[float], which: Which) -> None:
    excluded = fed(which, values).excluded
    ordered = excluded if which == "high" else excluded[::-1]
    assert (np.diff(ordered.astype(int)) >= 0).all()


@given(VALUES)
def test_an_end_never_moves_outward(values: list[float]) -> None:
    result, ends = end("high"), [1.0]
    for value in values:
        result.feed(value)
        ends.append(float(result.end))
    assert (np.diff(ends) <= 0).all()


@given(VALUES)
def test_the_margin_alone_and_the_whole_grid_say_the_same_of_it(values: list[float]) -> None:
    for which in ("low", "high"):
        alone = MeanEnd(which, SPAN, np.array([MARGIN]), 0.025, (2,))
        for value in values:
            alone.feed([value, 0.0])
        beyond = float(fed(which, values).end)
        assert bool(alone.excluded[0, 0]) == (beyond <= MARGIN if which == "high" else beyond >= MARGIN)


@pytest.mark.parametrize(
    ("which", "share", "noise"),
    [("low", 0.01, 0.0), ("low", 0.3, 0.02), ("high", 0.01, 0.02), ("high", 0.3, 0.0)],
)
def test_the_true_mean_is_seldom_excluded_however_often_one_looks(
    which: Which, share: float, noise: float
) -> None:
    """600 sequences of 1500 values: 15 may be wrong on average at 2.5 %, and 30 is four sds more."""
    rng, mean = np.random.default_rng(5), share
    result = MeanEnd(which, SPAN, np.array([mean]), 0.025, (600,))
    for _ in range(1500):
        up, down = rng.random((2, 600))
        result.feed((up < share + noise).astype(float) - (down < noise))
    assert result.excluded.sum() <= 30


def test_ends_hold_for_values_that_depend_on_those_before() -> None:
    """A stake that answers to the past: the mean stays 0 given it, and nothing else does."""
    rng = np.random.default_rng(6)
    result, total = MeanEnd("high", SPAN, np.array([1e-12]), 0.025, (600,)), np.zeros(600)
    for _ in range(500):
        size = np.where(total < 0, 1.0, 0.1)
        value = size * rng.choice([-1.0, 1.0], 600)
        total += value
        result.feed(value)
    assert result.excluded.sum() <= 30


@pytest.mark.parametrize("value", [1.001, -2.0, math.nan])
def test_a_value_outside_the_span_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="outside -1 to 1"):
        end("low").feed(value)
