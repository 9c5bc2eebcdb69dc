"""Outages of the network between the driver and the hosts of a cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class HostOutage:
    """A host did not answer the driver from `from_ns`, its last answer, to `until_ns`, its next.

    None: it has not answered yet. `serves` if replicas or the front are there, `loads` if load actors are;
    `clients` are those that ever were.
    """

    name: str
    address: str
    serves: bool
    reason: str
    from_ns: int
    until_ns: int | None = None
    clients: frozenset[int] = frozenset()
    loads: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"

    def lasted_at(self, from_ns: float, until_ns: float) -> bool:
        """True if the host was silent at some time from one instant to another."""
        return self.from_ns <= until_ns and (self.until_ns is None or self.until_ns >= from_ns)


class HostSource(Protocol):
    """Whoever watches the hosts, on this process's monotonic clock."""

    @property
    def patience_s(self) -> float:
        """The longest wait for a load host, in seconds."""
        ...

    def outages(self) -> Sequence[HostOutage]:
        """All outages so far, without their clients."""
        ...


class NoHosts:
    """Nobody watches: all is on one machine, or nothing is known of the hosts."""

    patience_s = 0.0

    def outages(self) -> Sequence[HostOutage]:
        """None were seen."""
        return ()
