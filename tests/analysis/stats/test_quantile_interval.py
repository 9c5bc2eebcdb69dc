"""`quantile_interval` of analysis.stats.dispersion: independent values, busy periods, failures."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from analysis.stats.dispersion import UNSEEN, overdispersion, quantile_interval
from analysis.stats.pooling import student_t
from analysis.stats.quantiles import least_values, quantile

TRUTH = math.log(10)


def exponential(seconds: int, memory_s: float, seed: int) -> NDArray[np.float64]:
    """Ten unit exponential values a second, whose copula has a part that is remembered, an AR(1) process."""
    chance = np.random.default_rng(seed)
    shared, keep = np.zeros(seconds), math.exp(-1 / memory_s) if memory_s else 0.0
    shared[0] = chance.normal()
    for i, push in enumerate(chance.normal(size=seconds - 1), 1):
        shared[i] = keep * shared[i - 1] + math.sqrt(1 - keep**2) * push
    share = 0.3 if memory_s else 0.0
    score = math.sqrt(share) * np.repeat(shared, 10) + math.sqrt(1 - share) * chance.normal(size=seconds * 10)
    return -np.log([math.erfc(z / math.sqrt(2)) / 2 for z in score])


def test_the_interval_by_hand() -> None:
    values = exponential(600, 0.0, seed=2)
    over = (values > quantile(values, 0.9)).reshape(120, 50).sum(axis=1).astype(float)
    scatter = overdispersion(over, np.full(120, 50.0), np.full(120, 0.1))
    assert scatter is not None
    error = math.sqrt(0.09 * scatter.inflation * (1 + UNSEEN / scatter.freedom) / 6000)
    wide = student_t(0.975, int(scatter.freedom)) * error
    expected = [quantile(values, 0.9 - wide), quantile(values, 0.9 + wide)]
    assert quantile_interval(values, 0.9, 600).ends == pytest.approx(expected)


def test_independent_values_have_an_interval_after_ten_minutes_and_it_covers() -> None:
    ends = [quantile_interval(exponential(600, 0.0, seed), 0.9, 600).ends for seed in range(40)]
    assert all(end and end[0] <= TRUTH <= end[1] for end in ends)


@pytest.mark.parametrize(
    ("seconds", "memory_s"), [(60, 5.0), (60, 120.0), (300, 30.0), (600, 120.0), (1800, 30.0)]
)
def test_values_that_resemble_their_neighbours_are_covered_or_have_no_interval(
    seconds: int, memory_s: float
) -> None:
    ends = [quantile_interval(exponential(seconds, memory_s, seed), 0.9, seconds).ends for seed in range(40)]
    wrong = [end for end in ends if end and not end[0] <= TRUTH <= end[1]]
    assert len(wrong) <= 4
    assert seconds > 60 or not any(ends)


def test_too_few_values_or_independent_stretches_say_what_an_interval_takes() -> None:
    assert quantile_interval(np.arange(99.0), 0.9, 600) == (None, 100, None)
    assert quantile_interval(np.full(300, math.nan), 0.99, 600) == (None, 1000, None)
    values = exponential(7200, 30.0, seed=1)
    short = quantile_interval(values[:3000], 0.9, 300)
    assert short.ends is None and short.needs is None and short.needs_s is not None and short.needs_s > 300
    assert quantile_interval(values, 0.9, 7200).ends is not None


def test_failures_are_the_largest_values_and_equal_values_are_known() -> None:
    values = exponential(1200, 0.0, seed=4)
    values[::12] = math.inf
    low, high = quantile_interval(values, 0.9, 1200).ends or (0.0, 0.0)
    assert TRUTH < low < math.inf == high
    assert quantile_interval(np.full(12_000, math.inf), 0.9, 1200).ends == (math.inf, math.inf)
    assert quantile_interval(np.full(12_000, 7.0), 0.9, 1200).ends == (7.0, 7.0)


@settings(max_examples=30)
@given(
    st.integers(1, 9000),
    st.floats(0.0, 3.0),
    st.sampled_from([0.0, 0.001, 0.05, 0.5]),
    st.sampled_from([0.5, 0.9, 0.99]),
    st.sampled_from([0.0, 3.0, 60.0, 3600.0]),
    st.integers(0, 2**32 - 1),
)
def test_an_interval_of_a_latency_holds_its_quantile_or_says_what_it_takes(
    size: int, spread: float, failed: float, q: float, seconds: float, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    # Slow stretches, as in a queue that fills and empties again.
    drift = np.cumsum(chance.normal(size=size)) * spread / 10
    values = 100 * np.exp(np.clip(drift, -20, 20) + spread * chance.normal(size=size))
    values[chance.random(size) < failed] = np.inf
    values[chance.random(size) < failed] = np.nan
    result, interval = quantile(values, q), quantile_interval(values, q, seconds)
    if interval.ends is None:
        few = np.sum(~np.isnan(values)) < least_values(q)
        assert (interval.needs == least_values(q)) if few else interval.needs_s >= seconds
        return
    low, high = interval.ends
    assert result is not None and 0 <= low <= result <= high
    assert math.isfinite(low) or math.isinf(result)  # nearly all have failed
