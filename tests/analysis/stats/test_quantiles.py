"""analysis.stats.quantiles and .dispersion, against numpy and known answers."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.stats.dispersion import GROWTH, START_FREEDOM, Dispersion, overdispersion, parzen
from analysis.stats.quantiles import quantile, sectioning

latencies = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)
levels = st.integers(0, 1000).map(lambda thousandth: thousandth / 1000)


@given(latencies, levels)
def test_it_is_numpys_linear_quantile(values, q):
    assert quantile(np.array(values), q) == pytest.approx(np.quantile(values, q), rel=1e-9, abs=1e-9)


@given(latencies, st.integers(0, 30), levels)
def test_failures_sort_last_and_never_make_nan(values, failures, q):
    answer = quantile(np.array(values + [math.inf] * failures), q)
    reached = q * (len(values) + failures - 1) <= len(values) - 1 + 1e-9
    assert math.isfinite(answer) == reached
    if reached:
        stand_in = np.array(values + [1e7] * failures)
        assert answer == pytest.approx(np.quantile(stand_in, q), rel=1e-9, abs=1e-9)


def test_the_last_finite_value_is_reached_exactly_and_beyond_it_is_infinite():
    values = np.array([1.0, 2.0, math.inf])
    assert quantile(values, 0.5) == 2.0
    assert quantile(values, 0.51) == math.inf
    assert quantile(np.full(4, math.inf), 0.9) == math.inf


def test_a_rounding_error_does_not_reach_for_a_failure():
    assert 0.07 * 100 > 7
    assert quantile(np.array([*range(8), *[math.inf] * 93], dtype=float), 0.07) == 7.0


def test_nothing_known_has_no_quantile():
    assert quantile(np.empty(0), 0.9) is None
    assert quantile(np.array([math.nan, math.nan]), 0.9) is None
    assert quantile(np.array([math.nan, 3.0]), 0.9) == 3.0


def test_sectioning_by_hand():
    values = np.concatenate([np.arange(10.0) + level for level in range(10)])
    half = 2.262157 * math.sqrt(sum((level - 4.5) ** 2 for level in range(10)) / 90)
    assert sectioning(values, 0.5) == pytest.approx((9.0 - half, 9.0 + half))


def test_sectioning_says_what_it_cannot_know():
    assert sectioning(np.arange(99.0), 0.9) is None
    values = np.arange(200.0)
    values[190:] = math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sectioning(values, 0.9) == (pytest.approx(17.1), math.inf)


def test_an_interval_of_a_latency_never_reaches_below_zero():
    """A stall in one of ten stretches: how often such a thing comes is not known from one of them."""
    stalled = np.concatenate([np.linspace(900, 1100, 90), np.linspace(5e4, 6e4, 10)])
    assert sectioning(stalled, 0.9) is None
    assert sectioning(np.full(100, 7.0), 0.9) == (7.0, 7.0)
    assert sectioning(np.zeros(100), 0.9) == (0.0, 0.0)


def test_overdispersion_by_hand():
    over, seen, mu = np.array([3.0, 0.0]), np.array([10.0, 10.0]), np.array([0.1, 0.1])
    total = 2.0**2 + 1.0 + 2 * parzen(1 / 2) * (2.0 * -1.0)
    raw = total / 1.8 / 0.3  # two blocks and one lag: all but nothing is left after the fit
    grown = raw * (raw / (5 / 1.8)) ** GROWTH
    freedom = 2 / (0.539 * 2)
    estimate = overdispersion(over, seen, mu)
    assert estimate.freedom == pytest.approx(freedom + START_FREEDOM)
    start = Dispersion.unknown(seen).inflation
    assert estimate.inflation == pytest.approx((freedom * grown + 3 * start) / (freedom + 3))


@pytest.mark.parametrize(("burst", "small"), [(30.0, False), (1.0, True)])
def test_a_rare_limit_has_no_more_freedom_than_bursts_were_seen(burst: float, small: bool):
    """Bursts are counted at their size, and small ones at the size believed beforehand."""
    seen, mu, over = np.full(400, 30.0), np.full(400, 0.01), np.zeros(400)
    over[:: round(2 * burst / 0.3)] = over[1 :: round(2 * burst / 0.3)] = burst
    estimate, start = overdispersion(over, seen, mu, rarity=10), Dispersion.unknown(seen, rarity=10)
    freedom = estimate.freedom - START_FREEDOM
    grown = (estimate.inflation * estimate.freedom - START_FREEDOM * start.inflation) / freedom
    assert (grown < start.inflation) == small
    assert freedom == pytest.approx(over.sum() / (start.inflation if small else grown))
    assert start.inflation > Dispersion.unknown(seen).inflation


def test_counts_that_are_as_expected_are_taken_as_independent_and_never_as_better():
    """Their variance is 0. They count as independent, whose inflation is 1, beside the start value."""
    seen, mu = np.full(40, 20.0), np.full(40, 0.2)
    estimate, start = overdispersion(seen * mu, seen, mu), Dispersion.unknown(seen)
    freedom = estimate.freedom - start.freedom
    assert estimate.inflation == pytest.approx((freedom + start.freedom * start.inflation) / estimate.freedom)


def test_overdispersion_is_at_least_one_has_no_ceiling_and_is_unknown_without_requests():
    blocks = np.ones(1000)
    assert overdispersion(10 * blocks, 100 * blocks, 0.1 * blocks).inflation == pytest.approx(1.0, abs=3)
    rng = np.random.default_rng(8)
    whole = 5000.0 * rng.binomial(1, 0.1, 4000)
    assert overdispersion(whole, 5000 * np.ones(4000), np.full(4000, 0.1)).inflation == pytest.approx(
        5000, rel=0.25
    )
    assert overdispersion(0 * blocks, 0 * blocks, 0.1 * blocks) is None


def test_a_drift_is_believed_until_the_blocks_say_otherwise():
    """All requests share a logit of variance (25 x 0.0136)^2, remembered for two minutes."""
    correlations = 1 + 2 * sum(math.exp(-5 * lag / 120) for lag in range(1, 2000))
    per_request = (25 * 0.0136) ** 2 * 0.1 * 0.9 * correlations
    few, many = (Dispersion.unknown(np.full(10, n)).inflation for n in (20.0, 25_000.0))
    assert (many - few) / 24_980 == pytest.approx(per_request, rel=0.02)


def test_neighbours_taken_together_are_blocks_of_their_sum():
    rng = np.random.default_rng(9)
    over, seen, mu = rng.binomial(40, 0.1, 120) * 1.0, np.full(120, 40.0), np.full(120, 0.1)
    together = overdispersion(over, seen, mu, longer=3.0)
    sums = overdispersion(over.reshape(-1, 3).sum(axis=1), np.full(40, 120.0), np.full(40, 0.1))
    assert together.freedom == sums.freedom
    starts = [Dispersion.unknown(seen, 3.0).inflation, Dispersion.unknown(np.full(40, 120.0)).inflation]
    assert sums.inflation - together.inflation == pytest.approx(3 * (starts[1] - starts[0]) / sums.freedom)
