"""How a simulated window's requests were spread over replicas and sessions, by the figures of `analysis`."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.rows import routing_spread
from loadgen.traffic.lengths import Ints
from loadgen.traffic.prefix_sharing import blocked
from loadgen.traffic.schedule import ArrivalSchedule


@dataclass(frozen=True, slots=True)
class Spreading:
    """Session and replica of every request of a window; the replicas are numbered through the whole fleet.

    `replicas` of them were simulated: number k is played by k mod `replicas`. `late` turns were due before
    the turn before them had ended.
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


def spreading(
    schedule: ArrivalSchedule,
    inside: NDArray[np.bool_],
    ended_s: NDArray[np.float64],
    replica: Ints | None,
    replicas: int,
) -> Spreading | None:
    """That of the requests `inside` a window; None without sessions or where nobody said who served them."""
    if schedule.session is None or replica is None:
        return None
    late = blocked(schedule, ended_s)
    return Spreading(schedule.session[inside], replica[inside], late[inside], replicas)
