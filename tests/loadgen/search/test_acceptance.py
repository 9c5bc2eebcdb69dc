"""loadgen/search/acceptance.py: a required rate is decided from counts alone."""

from dataclasses import replace

import pytest

from analysis.capacity.window_counts import LOOK_AHEAD, LOOK_BACK, LimitCount, WindowCounts
from loadgen.search import acceptance
from tests.support.search import search_windows
from tests.support.search.search_windows import BLOCKS

WHOLE_S = 24 * 45.0
LOAD = tuple(4.8 if i % 8 < 4 else 3.2 for i in range(LOOK_BACK + BLOCKS + LOOK_AHEAD))


def window(index: int, over: int) -> WindowCounts:
    """A window of 180 requests at 4 QPS, of which the first so many were over each limit."""
    blocks = tuple(min(max(over - 20 * i, 0), 20) for i in range(BLOCKS))
    limit = LimitCount(over, 180, blocks, (20,) * BLOCKS)
    return search_windows.window(4.0, {"ttft": limit, "tpot": limit}, 180, index, load=LOAD, work_var=0.1)


@pytest.mark.parametrize(
    ("over", "own", "verdict"),
    [
        ([0, 0], [0, 0], "undecided"),  # a quiet minute is no evidence
        ([0, 0, 0], [0, 0, 0], "undecided"),
        ([0, 0, 0, 0], [0, 0, 0, 0], "undecided"),
        ([170], [180], "failed"),
        ([130], [180], "undecided"),  # at the capacity one run in thirty begins so
        ([60], [90], "undecided"),  # one burst is no evidence
        ([20, 20, 20], [40, 40, 40], "undecided"),
        ([], [], "undecided"),
    ],
)
def test_when_an_answer_is_clear(over: list[int], own: list[int], verdict: str) -> None:
    windows, quantile = ([window(i, count) for i, count in enumerate(counts)] for counts in (over, own))
    assert acceptance.decide(4.0, windows, quantile, WHOLE_S, behind=False).verdict == verdict


def decided(over: list[int], whole_s: float = 0.0, behind: bool = False) -> acceptance.InterimAnalysis:
    """What windows show, by default in the last analysis."""
    windows = [window(i, each) for i, each in enumerate(over)]
    return acceptance.decide(4.0, windows, [], whole_s or 45.0 * len(over), behind)


def even(index: int, over: int) -> WindowCounts:
    """A window of which so many requests in each block of 20 were over the limit."""
    return replace(window(index, 0), limits={"ttft": search_windows.limit_count(BLOCKS * over, BLOCKS * 20)})


@pytest.mark.parametrize(("windows", "verdict"), [(1, "undecided"), (2, "undecided"), (3, "failed")])
def test_a_rate_fails_by_its_interval_after_three_windows(windows: int, verdict: str) -> None:
    seen = [even(index, 16) for index in range(windows)]
    assert acceptance.decide(4.0, seen, seen, 45.0 * windows, behind=False).verdict == verdict


def test_a_pass_allows_for_a_service_that_was_in_good_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same windows pass with the level that is assumed and not with one that strays much further."""
    assert decided(WITHIN).verdict == "passed"
    monkeypatch.setattr(acceptance, "UNSEEN_SD", 2.0)
    assert decided(WITHIN).verdict == "undecided"


WITHIN, OVER = [0] * 36, [60] * 12


def test_the_interval_decides_where_nothing_is_clear_at_once() -> None:
    assert decided(OVER).reason.startswith("the capacity is at most")
    assert decided(WITHIN).reason.startswith("the capacity is at least")
    assert all("at most 5 % of runs say so wrongly" in decided(over).reason for over in (WITHIN, OVER))


@pytest.mark.parametrize(("over", "verdict"), [(WITHIN, "passed"), (OVER, "failed")])
def test_windows_show_less_in_an_early_analysis_than_in_the_last_one(over: list[int], verdict: str) -> None:
    last, early = (decided(over, 45.0 * looks) for looks in (len(over), 40 * len(over)))
    assert (last.verdict, early.verdict) == (verdict, "undecided")
    assert last.capacity == early.capacity  # what is believed is the same; what may be said of it is not


def test_nothing_passes_while_answers_fall_behind_but_it_may_fail() -> None:
    assert decided(WITHIN, behind=True).verdict == "undecided"
    assert "more slowly than requests come" in decided(WITHIN, behind=True).reason
    assert decided(OVER, behind=True).verdict == "failed"
    calm = [window(i, 0) for i in range(4)]
    assert acceptance.decide(4.0, calm, calm, WHOLE_S, behind=True).verdict == "undecided"


@pytest.mark.parametrize(
    ("longest_s", "windows"), [(60, 1), (100, 1), (106, 2), (600, 12), (607, 12), (612, 13)]
)
def test_the_windows_that_fit_share_the_level(longest_s: float, windows: int) -> None:
    assert acceptance.windows_s(longest_s, transition_s=15, window_s=45, bridge_s=1) == windows * 45
