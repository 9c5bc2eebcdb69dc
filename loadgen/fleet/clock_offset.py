"""Compares the monotonic clock of a load actor with the driver's."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from loadgen.fleet.load_actor import whose_clock
from loadgen.fleet.target import FleetError

ROUND_TRIPS = 20
MAX_DOUBT_NS = 50_000_000
"""Largest doubt about a clock's offset with which a common start is made (our choice)."""


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """An actor's monotonic clock minus the driver's, known to within `doubt_ns`; one clock has no doubt."""

    offset_ns: int
    doubt_ns: int


def offset_of(read_clock: Callable[[], tuple[int, str]]) -> ClockOffset:
    """Compare a clock with this process's monotonic one; `read_clock` returns its time and its name.

    Of twenty round trips the shortest counts: the reading minus the middle of two readings here. No wall
    clock has a say, so that none that is set, or wrong, moves a request. Raises FleetError.
    """
    trips = []
    for _ in range(ROUND_TRIPS):
        before = time.monotonic_ns()
        there_ns, whose = read_clock()
        after = time.monotonic_ns()
        # Half of an odd number of nanoseconds more: a true zero must not lie just outside.
        trips.append(ClockOffset(there_ns - (before + after) // 2, (after - before) // 2 + 1))
    best = min(trips, key=lambda trip: trip.doubt_ns)
    if whose and whose == whose_clock() and abs(best.offset_ns) <= best.doubt_ns:
        return ClockOffset(0, 0)
    if best.doubt_ns > MAX_DOUBT_NS:
        raise FleetError(
            f"the clock of a load actor is known to within {best.doubt_ns / 1e6:.0f} ms only; "
            "run the driver nearer to the load actors, or on a less busy node"
        )
    return best
