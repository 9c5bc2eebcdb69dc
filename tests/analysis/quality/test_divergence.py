"""analysis.quality.answer_file of known distributions: bounds, symmetry, never beyond the true one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.quality.answer_file import MOST_NATS, jensen_shannon


def whole(p: np.ndarray, q: np.ndarray) -> float:
    """The divergence over the whole vocabulary."""
    middle = (p + q) / 2
    return sum(float(np.sum(one[one > 0] * np.log(one[one > 0] / middle[one > 0]))) for one in (p, q)) / 2


def likely(p: np.ndarray, count: int) -> dict[int, float]:
    """The most likely tokens, as an engine tells them."""
    with np.errstate(divide="ignore"):
        return {int(token): float(np.log(p[token])) for token in np.argsort(-p)[:count]}


@given(st.integers(0, 2**32), st.integers(2, 60), st.integers(1, 25), st.floats(0.05, 3))
def test_it_is_a_lower_bound_of_the_divergence_over_the_whole_vocabulary(
    seed: int, vocabulary: int, count: int, spread: float
) -> None:
    p, q = np.random.default_rng(seed).dirichlet(np.full(vocabulary, spread), 2)
    result = jensen_shannon(likely(p, count), likely(q, count))
    assert 0 <= result <= whole(p, q) + 1e-9
    assert result == pytest.approx(jensen_shannon(likely(q, count), likely(p, count)), abs=1e-12)


@given(st.integers(0, 2**32), st.integers(2, 20))
def test_it_is_the_true_divergence_where_every_token_is_known(seed: int, vocabulary: int) -> None:
    p, q = np.random.default_rng(seed).dirichlet(np.ones(vocabulary), 2)
    assert jensen_shannon(likely(p, 20), likely(q, 20)) == pytest.approx(whole(p, q), abs=1e-9)


NATS = st.dictionaries(st.integers(0, 30), st.floats(-40, 0) | st.just(-math.inf), max_size=21)


@given(NATS, NATS)
def test_rounded_probabilities_of_more_than_1_stay_within_bounds(
    a: dict[int, float], b: dict[int, float]
) -> None:
    assert 0 <= jensen_shannon(a, b) <= MOST_NATS
    assert jensen_shannon(a, a) == pytest.approx(0.0, abs=1e-12)


def test_certain_and_opposite_answers_share_nothing() -> None:
    a, b = {1: 0.0, 2: -math.inf}, {1: -math.inf, 2: 0.0}
    assert jensen_shannon(a, b) == pytest.approx(math.log(2))
    half = {1: math.log(0.5), 2: math.log(0.5)}
    by_hand = 0.5 * math.log(1 / 0.75) + 0.25 * math.log(0.5 / 0.75) + 0.25 * math.log(0.5 / 0.25)
    assert jensen_shannon(a, half) == pytest.approx(by_hand)


def test_tokens_that_only_one_side_tells_count_as_far_as_the_other_bounds_them() -> None:
    """Token 2 has at most 0.4 on the other side, which may be all it has; with 0.01 it cannot."""
    assert jensen_shannon({1: math.log(0.6), 2: math.log(0.4)}, {1: math.log(0.6), 3: math.log(0.4)}) == 0.0
    b = {1: math.log(0.6), 3: math.log(0.39), 4: math.log(0.01)}
    assert jensen_shannon({1: math.log(0.6), 2: math.log(0.4)}, b) > 0.2


@pytest.mark.parametrize("nats", [0.1, math.inf, math.nan])
def test_what_is_no_log_probability_is_refused(nats: float) -> None:
    with pytest.raises(ValueError, match="token 7 is no log probability"):
        jensen_shannon({1: -1.0}, {1: -1.0, 7: nats})
