"""analysis.stats.estimate, pooling, alpha_spending: digits, known quantiles, intervals that hold."""

import doctest
from statistics import NormalDist

import numpy as np
import pytest

from analysis.stats import estimate
from analysis.stats.alpha_spending import LEVEL, spent, tail_at
from analysis.stats.estimate import Estimate, certified, middle, rounded_down, span
from analysis.stats.pooling import Measured, chi_square, pooled, repeated, student_t
from tests.support.words.words import TABLES


def test_the_examples_hold() -> None:
    result = doctest.testmod(estimate)
    assert result.attempted and result.failed == 0


@pytest.mark.parametrize("qps", [0.0047, 0.0571, 0.99996, 2.65549, 27.8999, 1234.567])
@pytest.mark.parametrize("width", [1e-4, 0.1, 1.9])
def test_no_text_of_a_certified_rate_is_above_it(qps: float, width: float) -> None:
    result = Estimate(1.1 * qps, qps * (1.1 - width / 2), qps * (1.1 + width / 2), qps)
    shown, step = float(certified(result)), 10.0 ** -len(middle(result).partition(".")[2])
    assert shown <= qps < shown + step * (1 + 1e-6)


@pytest.mark.parametrize("bound", [0.0047, 2.65549, 1234.567])
def test_a_bound_is_rounded_to_the_side_on_which_it_still_holds(bound: float) -> None:
    least, most = span(Estimate.at_least(bound)), span(Estimate.at_most(bound))
    assert float(least.removeprefix("at least ")) <= bound <= float(most.removeprefix("at most "))


@pytest.mark.parametrize("hundredths", range(1, 1000, 7))
def test_a_rate_of_two_decimals_stays(hundredths: int) -> None:
    assert rounded_down(hundredths / 100, 2) == hundredths / 100


@pytest.mark.parametrize(("figures", "message"), TABLES["digits of an interval"])
def test_digits_follow_the_width_of_the_interval(figures: tuple[float, ...], message: str) -> None:
    assert span(Estimate(*figures)) == message


def test_a_bound_is_no_interval() -> None:
    least, most = Estimate.at_least(2.0), Estimate.at_most(2.0)
    assert least.is_bound and least.is_lower_bound and not least.is_upper_bound
    assert most.is_bound and most.is_upper_bound and most.is_open
    assert least.times(2.0).per(4.0) == Estimate.at_least(1.0)
    assert not Estimate(2.0, 2.0, 2.0).is_bound and not Estimate(2.0).is_bound


def test_an_interval_of_ln_comes_back_and_an_open_end_has_no_sd() -> None:
    assert Estimate.of_ln(5.0, 0.03).ln_sd == pytest.approx(0.03)
    with pytest.raises(ValueError, match="open end"):
        _ = Estimate(5.0, 4.0).ln_sd


@pytest.mark.parametrize(
    ("q", "df", "table"),
    [(0.975, 1, 12.706), (0.975, 2, 4.3027), (0.975, 4, 2.7764), (0.975, 9, 2.2622), (0.05, 4, -2.1318)],
)
def test_student_t_is_that_of_the_tables(q: float, df: int, table: float) -> None:
    assert student_t(q, df) == pytest.approx(table, rel=1e-4)


@pytest.mark.parametrize(
    ("q", "df", "table"), [(0.025, 1, 0.000982), (0.975, 1, 5.0239), (0.025, 4, 0.48442), (0.975, 4, 11.1433)]
)
def test_chi_square_is_that_of_the_tables(q: float, df: int, table: float) -> None:
    assert chi_square(q, df) == pytest.approx(table, rel=1e-3)


def test_an_interval_gives_the_sd_it_came_from() -> None:
    assert Measured.from_estimate(Estimate(5.0, 4.8, 5.2)).sd == pytest.approx(
        np.log(5.2 / 4.8) / 3.92, rel=1e-3
    )


def test_equal_parts_agree_on_their_value_and_a_precise_part_counts_more() -> None:
    same = pooled([Measured(5.0, 0.02)] * 2)
    assert same.qps.value == pytest.approx(5.0, rel=1e-6)
    assert same.qps.low < same.qps.certified < same.qps.value < same.qps.high
    assert [effect.value for effect in same.effects] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert 5.0 < pooled([Measured(5.0, 0.01), Measured(5.2, 0.04)]).qps.value < 5.1


def test_parts_that_differ_widen_the_interval_and_more_parts_narrow_it() -> None:
    def width(*values: float) -> float:
        estimate = pooled([Measured(value, 0.02) for value in values])
        return estimate.qps.high / estimate.qps.low

    assert width(5.0, 5.5) > width(5.0, 5.05) > width(5.0, 5.05, 5.0, 5.05)
    apart = pooled([Measured(value, 0.005) for value in (5.0, 5.0, 5.0, 5.5)])
    assert apart.between.low > 0.015, "ten sds apart is no noise"
    assert [effect.low > 0 for effect in apart.effects] == [False, False, False, True]


def test_the_mean_of_repeats_has_the_interval_of_student_t() -> None:
    estimate = repeated([5.0, 5.1, 5.2])
    assert estimate.mean.value == pytest.approx(5.1)
    assert estimate.mean.high - 5.1 == pytest.approx(4.3027 * 0.1 / np.sqrt(3), rel=1e-4)
    assert estimate.mean.certified == pytest.approx(5.1 - 2.9200 * 0.1 / np.sqrt(3), rel=1e-4)
    assert estimate.variation.value == pytest.approx(0.1 / 5.1)
    assert estimate.variation.low == pytest.approx(0.1 / 5.1 * np.sqrt(2 / 7.3778), rel=1e-3)
    assert repeated([3.0, 4.0]).mean.low == 0, "by Student's t alone from -2.9 to 9.9"


@pytest.mark.parametrize("known", [pooled, repeated])
def test_one_part_has_no_spread_and_is_refused(known: object) -> None:
    with pytest.raises(ValueError, match="at least two"):
        known([5.0] if known is repeated else [Measured(5.0, 0.02)])  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize(("between", "least"), [(0.02, 0.93), (0.075, 0.82)])
def test_the_interval_over_two_deployments_is_right_as_often_as_it_says(between: float, least: float) -> None:
    draw, covered, count = np.random.default_rng(1), 0, 40
    for _ in range(count):
        truth = draw.normal(0.0, between, 2)
        estimate = pooled([Measured(5 * np.exp(at), 0.015) for at in draw.normal(truth, 0.015)])
        covered += estimate.qps.low < 5.0 < estimate.qps.high
    assert covered >= least * count


def test_deployments_that_differ_by_a_factor_have_an_interval_as_wide() -> None:
    estimate = pooled([Measured(4.0, 0.01), Measured(6.0, 0.01)])
    assert estimate.qps.low < 4.0 and estimate.qps.high > 6.0 and estimate.between.high > np.log(6 / 4)


def tails(looks: int) -> list[float]:
    return [tail_at([i / looks for i in range(1, k + 1)]) for k in range(1, looks + 1)]


def test_what_is_spent_grows_to_the_level_and_no_further() -> None:
    shares = np.linspace(0, 1.2, 25)
    steps = np.diff([spent(share) for share in shares])
    assert spent(0) == 0 and (steps >= 0).all() and steps.sum() == pytest.approx(LEVEL)


@pytest.mark.parametrize("looks", [2, 5, 12, 40])
def test_all_looks_together_keep_the_level(looks: int) -> None:
    runs = 40_000
    steps = np.random.default_rng(looks).standard_normal((runs, looks))
    statistic = np.cumsum(steps, axis=1) / np.sqrt(np.arange(1, looks + 1))
    beyond = statistic > [NormalDist().inv_cdf(1 - tail) for tail in tails(looks)]
    assert beyond.any(axis=1).mean() == pytest.approx(LEVEL, abs=4 * np.sqrt(LEVEL / runs))


def test_a_second_look_at_the_same_time_has_nothing_left() -> None:
    assert tail_at([0.5, 0.5]) == 0
    # Nor does it take anything from those that follow.
    assert tail_at([0.5, 0.5, 1.0]) == pytest.approx(tail_at([0.5, 1.0]))
