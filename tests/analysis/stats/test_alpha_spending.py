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
