"""The search over a driver: from the first segment to the posterior, whatever ends it.

Knows the order of things; the search decides rates, the driver loads and judges.
"""

from collections.abc import Callable
from dataclasses import dataclass

from analysis.capacity import Capacity
from loadgen.driver import Driver
from loadgen.search import Outcome, Segment, Stop, next_segment


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep found: the outcomes in order, the posterior, and why it ended."""

    outcomes: list[Outcome]
    capacity: Capacity | None
    stop: Stop
    elapsed_s: float


def focus(driver: Driver) -> Segment | Stop:
    """The next step of "ramp, then focus"."""
    return next_segment(driver.plan.search, driver.plan.start, driver.outcomes, driver.elapsed_s())


def sweep(driver: Driver, choose: Callable[[Driver], Segment | Stop] = focus) -> Sweep:
    """Load what `choose` says until the budget or the search ends it."""
    driver.warm_up()
    while True:
        step = choose(driver)
        if not isinstance(step, Stop):
            step = driver.heal() or step
        if isinstance(step, Stop):
            driver.drain()
            elapsed_s = driver.elapsed_s()
            driver.emit("stop", stop=step.kind, text=f"end of search: {step.reason}", elapsed_s=elapsed_s)
            return Sweep(driver.outcomes, driver.capacity(), step, elapsed_s)
        driver.load(step)
