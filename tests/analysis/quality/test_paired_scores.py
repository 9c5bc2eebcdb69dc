"""analysis.quality.paired_scores: McNemar's exact test and Newcombe's interval, by known answers."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.quality.paired_scores import PairedScores

COUNTS = st.integers(0, 300)


@pytest.mark.parametrize(
    "base_only, candidate_only, p_value",
    [(0, 0, 1.0), (3, 3, 1.0), (10, 2, 158 / 4096), (2, 10, 158 / 4096), (6, 0, 2 / 64), (5, 4, 1.0)],
)
def test_p_values_by_hand(base_only: int, candidate_only: int, p_value: float) -> None:
    assert PairedScores(100, base_only, candidate_only, 7).p_value == pytest.approx(p_value)


def test_thousands_of_discordant_pairs_are_no_trouble() -> None:
    assert PairedScores(0, 3000, 2000, 0).p_value < 1e-40
    assert PairedScores(0, 2500, 2500, 0).p_value == 1.0


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_turning_the_sides_turns_the_interval(both: int, one: int, two: int, neither: int) -> None:
    a, b = PairedScores(both, one, two, neither), PairedScores(both, two, one, neither)
    assert a.p_value == b.p_value
    assert a.interval == pytest.approx((-b.interval[1], -b.interval[0]), abs=1e-12)
    if a.difference is not None:
        assert -1 <= a.interval[0] <= a.difference <= a.interval[1] <= 1


def test_without_a_question_nothing_is_known() -> None:
    found = PairedScores.of([])
    assert (found.difference, found.base_share, found.candidate_share) == (None, None, None)
    assert found.interval == (-1.0, 1.0) and found.p_value == 1.0


def test_pairs_are_counted() -> None:
    found = PairedScores.of([(True, True), (True, False), (True, False), (False, True), (False, False)])
    assert found == PairedScores(1, 2, 1, 1) and found.questions == 5
    assert (found.base_share, found.candidate_share, found.difference) == (3 / 5, 2 / 5, -1 / 5)


@pytest.mark.parametrize("shares", [(0.6, 0.2, 0.1, 0.1), (0.85, 0.05, 0.05, 0.05), (0.3, 0.3, 0.2, 0.2)])
def test_the_interval_covers_the_true_difference(shares: tuple[float, ...]) -> None:
    """All outcomes of 24 questions with their chances: no less than 95 %, and more where few differ."""
    total, covered = 24, 0.0
    for both, one, two in itertools.product(range(total + 1), repeat=3):
        neither = total - both - one - two
        if neither >= 0:
            counts = (both, one, two, neither)
            ln = math.lgamma(total + 1) + sum(
                count * math.log(share) - math.lgamma(count + 1)
                for count, share in zip(counts, shares, strict=True)
            )
            low, high = PairedScores(*counts).interval
            covered += math.exp(ln) * (low <= shares[2] - shares[1] <= high)
    assert covered >= 0.94


def test_the_exact_test_is_wrong_no_more_often_than_it_says() -> None:
    rng = np.random.default_rng(2)
    ones = rng.binomial(40, 0.5, 2000)
    wrong = np.mean([PairedScores(0, int(one), 40 - int(one), 0).p_value <= 0.05 for one in ones])
    assert wrong <= 0.05
