"""`loadgen.search.acceptance`: two windows decide nothing that three do, for their scatter is unknown."""

import math

import pytest

from analysis.capacity.window_counts import LOOK_AHEAD, LOOK_BACK, LimitCount, WindowCounts
from loadgen.search import acceptance
from loadgen.traffic.schedule import NS

BLOCKS = 9


def window(index: int, over: int) -> WindowCounts:
    """A window of 180 requests at 4 QPS of which so many in each block of 20 were over the limit."""
    limit = LimitCount(BLOCKS * over, BLOCKS * 20, (over,) * BLOCKS, (20,) * BLOCKS)
    ends_ns = (45 * index * NS, 45 * index * NS, 45 * (index + 1) * NS, 45 * (index + 1) * NS)
    load = tuple(4.8 if i % 8 < 4 else 3.2 for i in range(LOOK_BACK + BLOCKS + LOOK_AHEAD))
    known = {"requests": 180, "log_work": math.log(4), "load": load, "work_var": 0.1}
    return WindowCounts(index, "window", 4.0, 1, *ends_ns, **known, limits={"ttft": limit})


@pytest.mark.parametrize(("windows", "verdict"), [(1, "undecided"), (2, "undecided"), (3, "failed")])
def test_a_rate_fails_by_its_interval_after_three_windows(windows: int, verdict: str) -> None:
    seen = [window(index, 16) for index in range(windows)]
    assert acceptance.decide(4.0, seen, seen, 45.0 * windows, behind=False).verdict == verdict


def test_a_pass_allows_for_a_service_that_was_in_good_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same windows pass with the level that is assumed and not with one that strays much further."""
    seen = [window(index, 0) for index in range(20)]
    assert acceptance.decide(4.0, seen, [], 20 * 45.0, behind=False).verdict == "passed"
    monkeypatch.setattr("analysis.capacity.posterior.LEVEL_SD", 2.0)
    assert acceptance.decide(4.0, seen, [], 20 * 45.0, behind=False).verdict == "undecided"
