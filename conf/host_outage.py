"""A time in which a host of a cluster could not be reached: seen by `cluster`, weighed by `loadgen`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostOutage:
    """A host did not answer the driver from `from_ns`, its last answer, to `until_ns`, its next.

    None: it has not answered yet. `serves` if replicas or the front are there; `clients` are the load actors
    that were there.
    """

    name: str
    address: str
    serves: bool
    reason: str
    from_ns: int
    until_ns: int | None = None
    clients: frozenset[int] = frozenset()

    @property
    def loads(self) -> bool:
        """True if load actors were there."""
        return bool(self.clients)

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"

    def lasted_at(self, from_ns: float, until_ns: float) -> bool:
        """True if the host was silent at some time from one instant to another."""
        return self.from_ns <= until_ns and (self.until_ns is None or self.until_ns >= from_ns)
