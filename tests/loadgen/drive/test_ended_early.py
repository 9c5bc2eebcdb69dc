"""loadgen/drive/driver.py: windows that end early, by an overload and not by the load generator."""

from typing import Any, Literal

import pytest

from conf import Experiment, load
from loadgen.fleet.target import Observation
from loadgen.search.window_plan import WindowPlan
from loadgen.traffic.schedule import NS, ArrivalSchedule
from tests.support.virtual.virtual_drivers import altered, driver, engines
from tests.support.virtual.virtual_target import VirtualTarget

WORDS = ["workload=smoke"]


class Busy(VirtualTarget):
    """A virtual target on whose clock 100 ms pass after each observation, while the driver decides."""

    def __init__(self, experiment: Experiment, **row: Any) -> None:
        super().__init__(engines(experiment))
        self._row = row

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        seen = super().run(schedule, until_ns)
        self._now_ns += NS // 10
        return Observation(altered(seen.ended, self._row), altered(seen.pending, self._row))


@pytest.mark.parametrize(("kind", "rate_qps"), [("ramp", 100.0), ("window", 400.0)])
@pytest.mark.parametrize(
    ("lag_ns", "void", "said"),
    [(1_400_000, False, "overloaded, ended early"), (NS // 10, True, "VOID client_limited")],
)
def test_a_window_that_ends_early_is_void_only_where_the_client_was_late(
    kind: Literal["ramp", "window"], rate_qps: float, lag_ns: int, void: bool, said: str
) -> None:
    drive, _, events = driver(WORDS, target=Busy(load(WORDS), send_offset_ns=lag_ns))
    drive.load(WindowPlan(0, kind, rate_qps, 0.0, 20.0, False, "far too much"))
    outcome = drive.windows.outcomes[0]
    sent = next(check for check in drive.windows.outcomes[0].verdict.checks if check.name == "sent")
    assert (outcome.aborted, sent.value) == (True, 1.0)
    assert drive.windows.outcomes[0].verdict.valid != void
    (done,) = [facts for name, facts in events if name == "window_done"]
    assert done["verdict"].startswith(said)
