"""The seam between the driver and the service under load: arrivals in, request rows out, on one clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from conf.host_outage import HostOutage
from loadgen.traffic.schedule import ArrivalSchedule


class HostSource(Protocol):
    """Whoever watches the hosts, on this process's monotonic clock."""

    @property
    def patience_s(self) -> float:
        """The longest wait for a load host, in seconds."""

    def outages(self) -> Sequence[HostOutage]:
        """All outages so far, without their clients."""


class NoHosts:
    """Nobody watches: all is on one machine, or nothing is known of the hosts."""

    patience_s = 0.0

    def outages(self) -> Sequence[HostOutage]:
        """None were seen."""
        return ()


class FleetError(RuntimeError):
    """The fleet could not be started; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class LostActor:
    """A load actor that died or fell silent: it owned the requests whose `owner` of `of` is `index`."""

    client_id: int
    index: int
    of: int
    reason: str
    host: str = ""

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host else ""
        return f"load actor {self.client_id}{where} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Observation:
    """Requests that ended since the last call and those in flight (`records.PROGRESS`).

    `health` has a row per load actor and second since then (`records.CLIENTS`), `lost_actors` are all so far
    in order; rows that one left on disk may have been reported before. `silent_actors` are those whose host
    cannot be reached now; their rows in flight are as last known.
    """

    ended: pa.Table
    pending: pa.Table
    health: list[dict[str, Any]] = field(default_factory=list)
    lost_actors: list[LostActor] = field(default_factory=list)
    silent_actors: list[str] = field(default_factory=list)


class Target(Protocol):
    """The service under load: the HTTP fleet, or the engine model on a virtual clock."""

    def now_ns(self) -> int:
        """The run's clock."""

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        """Take arrivals that follow all earlier ones, let time pass until `until_ns`, and report."""

    def retract(self) -> None:
        """Forget every arrival that is not due yet."""

    def heal(self) -> bool:
        """Wait for silent load actors and replace lost ones; False if that is not possible (any more)."""
