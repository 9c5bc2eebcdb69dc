"""Distribution of a simulated window's requests over replicas and sessions, by the figures of `analysis`."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.rows import routing_spread
from loadgen.traffic.lengths import Ints
from loadgen.traffic.prefix_sharing import blocked
from loadgen.traffic.schedule import ArrivalSchedule


@dataclass(frozen=True, slots=True)
class RoutingOutcome:
    """Session and replica of every request of a window; replicas are numbered through the whole fleet.

    `replicas` of them were simulated: number k is played by k mod `replicas`. `late` turns were due before
    the previous turn had ended.
    """

    session: Ints
    replica: Ints
    late: NDArray[np.bool_]
    replicas: int

    @property
    def replicas_per_session(self) -> float | None:
        return routing_spread.replicas_per_session(self._rows(self.replica))

    @property
    def max_over_mean_share(self) -> float | None:
        return routing_spread.max_over_mean_share(self._rows(self.replica % self.replicas), self.replicas)

    @property
    def blocked_share(self) -> float:
        return float(self.late.mean()) if len(self.late) else 0.0

    def _rows(self, replica: Ints) -> pa.Table:
        return pa.table({"session_id": self.session, "replica_id": replica})


def routing_outcome(
    schedule: ArrivalSchedule,
    inside: NDArray[np.bool_],
    ended_s: NDArray[np.float64],
    replica: Ints | None,
    replicas: int,
) -> RoutingOutcome | None:
    """The outcome for the requests `inside` a window; None without sessions or if replicas are unknown."""
    if schedule.session is None or replica is None:
        return None
    late = blocked(schedule, ended_s)
    return RoutingOutcome(schedule.session[inside], replica[inside], late[inside], replicas)
