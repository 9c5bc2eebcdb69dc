"""analysis.results.summary: reasons not to believe an interval stand under the answer."""

from typing import Any

import pytest

from tests.support.runs.golden import GOLDEN, sweep_json
from tests.support.runs.verdict_trees import text_of


def answer(**limit: Any) -> str:
    """The summary of the golden run, whose binding limit is changed."""
    tree = sweep_json(GOLDEN)
    tree["capacity"]["limits"][tree["capacity"]["binding"]] |= limit
    return text_of(tree)


def test_a_run_of_enough_requests_has_none() -> None:
    assert "doubtful" not in answer()


@pytest.mark.parametrize(("determined", "times"), [(249, 2), (100, 3), (1, 250)])
def test_an_interval_of_few_requests_says_how_much_longer(determined: int, times: int) -> None:
    text = answer(determined=determined)
    assert (
        f"doubtful: it rests on {determined} requests, fewer than 250; measure {times} times as long" in text
    )


def test_a_slope_that_nobody_expects_is_said() -> None:
    assert "doubtful: the share over the bound on p90 TPOT hardly follows the load" in answer(
        slope_unusual=True
    )


def test_users_who_stay_make_an_answer_lean_low() -> None:
    tree = sweep_json(GOLDEN)
    tree["asked"]["conversations"] = "cache-aware"
    assert "biased 2 to 3 % low: users stay for longer than a search" in text_of(tree)
