"""Prepares a service for a segment and loads it: settle, cache warm-up, steady state, then the window.

Knows the order of these steps and which segments need them; each step knows when it is over.
"""

from loadgen.drive.cache_warmup import warm_caches
from loadgen.drive.driver import Driver
from loadgen.drive.steady_state import after_break
from loadgen.search.segments import Segment
from loadgen.traffic.processes import Profile


def load_prepared(
    driver: Driver, segment: Segment, may_abort: bool = True, profile: Profile | None = None
) -> None:
    """Load one segment as a service shows it that is neither backed up nor cold nor still filling."""
    driver.settle(segment)
    if segment.kind != "ramp" and driver.plan.workload.wants_hits:
        warm_caches(driver, segment)
    if driver.loss.is_first_window():
        first_qps = profile.first_qps / driver.plan.nodes if profile else segment.rate_qps
        segment = after_break(driver, segment, first_qps)
    driver.load(segment, may_abort, profile)
