"""loadgen/drive/windows.py: a watcher sees the running window and changes none of its figures."""

from functools import cache
from typing import Any

from analysis.live.state import WindowSoFar
from loadgen.drive import programs
from loadgen.drive.driver import Driver
from tests.support.virtual.virtual_drivers import driver


@cache
def searched(watched: bool) -> tuple[Driver, list[WindowSoFar]]:
    seen: list[WindowSoFar] = []
    made, *_ = driver([])
    made.watcher = seen.append if watched else None
    programs.offer_rate(made, 3.0, 40, 5)
    return made, seen


def test_the_same_windows_are_measured_with_and_without_a_watcher() -> None:
    (alone, none), (beside, seen) = searched(False), searched(True)
    outcomes: list[Any] = [
        [(o.plan, o.counts) for o in driver.windows.outcomes] for driver in (alone, beside)
    ]
    assert outcomes[0] == outcomes[1] and not none and seen


def test_it_tells_counts_that_add_up_and_how_much_is_out() -> None:
    _, seen = searched(True)
    for one in seen:
        assert one.sent == one.answered + one.failed + one.pending
        assert one.window_start_s <= one.now_s <= one.window_end_s
        assert set(one.latencies) == {"ttft_p90_ms", "tpot_p90_ms"}
    last = [one for one in seen if one.index == seen[-1].index]
    assert [one.sent for one in last] == sorted(one.sent for one in last)
