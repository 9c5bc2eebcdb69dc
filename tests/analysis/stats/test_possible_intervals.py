"""`stats.dispersion` and `stats.pooling` of analysis: no interval of random values is impossible."""

import math

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analysis.stats.dispersion import quantile_interval
from analysis.stats.pooling import Measured, pooled, repeated
from analysis.stats.quantiles import least_values, quantile

rates = st.floats(0.01, 1000.0)


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


@settings(max_examples=30)
@given(st.lists(rates, min_size=2, max_size=6))
@example([3.0, 4.0])  # by Student's t alone from -2.9 to 9.9
def test_the_mean_of_repeats_has_no_negative_end(values: list[float]) -> None:
    estimate = repeated(values)
    assert (
        0
        <= estimate.mean.low
        <= estimate.mean.certified
        <= estimate.mean.value
        <= estimate.mean.high
        < math.inf
    )
    assert 0 <= estimate.variation.low <= estimate.variation.value <= estimate.variation.high


@settings(max_examples=12)
@given(st.lists(st.tuples(rates, st.floats(0.005, 1.0)), min_size=2, max_size=5))
def test_pooled_parts_have_a_mean_within_its_interval(parts: list[tuple[float, float]]) -> None:
    estimate = pooled([Measured(qps, sd) for qps, sd in parts])
    assert (
        0 < estimate.qps.low <= estimate.qps.certified <= estimate.qps.value <= estimate.qps.high < math.inf
    )
    assert 0 <= estimate.between.low <= estimate.between.value <= estimate.between.high
    assert all(effect.low <= effect.value <= effect.high for effect in estimate.effects)
