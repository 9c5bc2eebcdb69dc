"""analysis.stats.alpha_spending: known answers, and what a drawn Brownian motion makes of it."""

from statistics import NormalDist

import numpy as np
import pytest

from analysis.stats.alpha_spending import LEVEL, spent, tail_at


def tails(looks: int) -> list[float]:
    return [tail_at([i / looks for i in range(1, k + 1)]) for k in range(1, looks + 1)]


def test_what_is_spent_grows_to_the_level_and_no_further() -> None:
    shares = np.linspace(0, 1.2, 25)
    steps = np.diff([spent(share) for share in shares])
    assert spent(0) == 0 and (steps >= 0).all() and steps.sum() == pytest.approx(LEVEL)


def test_one_look_has_the_whole_level() -> None:
    assert tail_at([1.0]) == pytest.approx(LEVEL, rel=0.01)


def test_later_looks_may_decide_on_less_and_none_on_more_than_the_level() -> None:
    found = tails(12)
    assert found == sorted(found) and 0 < found[0] < 0.001 and found[-1] < LEVEL
    # Looks are alike, so that their tails may add up to more than the level.
    assert sum(found) > 1.5 * LEVEL


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
