"""analysis.stats.estimate: digits follow the interval, a bound and a certified rate never promise more."""

import doctest
import math

import pytest

from analysis.stats import estimate
from analysis.stats.estimate import Estimate, certified, interval, middle, number, rounded_down, span


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


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ((3.3112, 2.4041, 4.4512), "3.31 [2.40, 4.45]"),
        ((0.01482, 0.01311, 0.01661), "0.0148 [0.0131, 0.0166]"),
        ((184.213, 183.92, 184.551), "184.21 [183.92, 184.55]"),
        ((184.213, 170.1, 199.4), "184 [170, 199]"),
        ((5.0, None, 6.1), "5.00 [open, 6.10]"),
        ((5.0, 5.0, 5.0), "5.00 [5.00, 5.00]"),
        ((0.0, -0.012, 0.013), "0.00000 [-0.01200, 0.01300]"),
        ((1e-15, -4.489, 4.489), "0.000 [-4.489, 4.489]"),
        ((0.5, 0.4999999999, 0.5000000001), "0.50000 [0.50000, 0.50000]"),
        ((2100.0, 2000.0, math.inf), "2100 [2000, infinite]"),
        ((math.inf, None, None), "infinite"),
    ],
)
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


def test_what_is_not_known_is_a_word() -> None:
    assert (span(None), number(None), number(math.nan), number(-math.inf)) == (
        "unknown",
        "unknown",
        "unknown",
        "-infinite",
    )
    assert interval(Estimate(1.0, None, 2.0)) == "[open, 2.00]"
