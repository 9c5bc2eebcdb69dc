"""The search over a driver: from the first window to the posterior, whatever ends it.

The search decides rates, the driver loads and judges.
"""

from collections.abc import Callable
from dataclasses import dataclass

from analysis.capacity.posterior import Capacity
from loadgen.drive.driver import Driver
from loadgen.drive.loss_recovery import TargetLost
from loadgen.drive.prepared_load import load_prepared, warm_up
from loadgen.search.policy import next_window
from loadgen.search.window_plan import MeasuredWindow, Stop, WindowPlan


@dataclass(frozen=True, slots=True)
class Sweep:
    """The outcomes of a sweep in order, the capacity that they claim, and why it ended."""

    outcomes: list[MeasuredWindow]
    capacity: Capacity | None
    stop: Stop
    elapsed_s: float


def focus(driver: Driver) -> WindowPlan | Stop:
    """The next step of "ramp, then focus"."""
    return next_window(driver.plan.search, driver.plan.begin, driver.windows.outcomes, driver.elapsed_s())


def sweep(driver: Driver, choose: Callable[[Driver], WindowPlan | Stop] = focus) -> Sweep:
    """Load what `choose` says until the budget or the search ends it. Raises TargetLost for a service that
    stays away.
    """
    warm_up(driver)
    while True:
        try:
            stop = _go_on(driver, choose)
        except TargetLost as lost:
            driver.recover(lost)
            continue
        if stop is not None:
            elapsed_s = driver.elapsed_s()
            driver.emit("stop", stop=stop.kind, text=f"end of search: {stop.reason}", elapsed_s=elapsed_s)
            return Sweep(driver.windows.outcomes, driver.windows.claimed_capacity(), stop, elapsed_s)


def _go_on(driver: Driver, choose: Callable[[Driver], WindowPlan | Stop]) -> Stop | None:
    """Load one window more; or else let every answer end and return why there is none."""
    step = choose(driver)
    if not isinstance(step, Stop):
        step = driver.loss.await_load_hosts() or step
    if isinstance(step, Stop):
        driver.drain(run_out=True)
        return step
    load_prepared(driver, step)
    return None
