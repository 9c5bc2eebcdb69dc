"""The seam between the search and what it loads: arrivals in, request rows out, on one clock."""

from dataclasses import dataclass
from typing import Any, Protocol

from loadgen.arrivals import ArrivalSchedule


@dataclass(frozen=True, slots=True)
class Observation:
    """Rows (of schema `REQUESTS`) that ended since the last call or are in flight now (`pending`).

    `health` maps each load actor to its figures since the last call (`Worker.health`).
    """

    rows: list[dict[str, Any]]
    health: dict[str, dict[str, float]]
    lost_actors: list[str]


class Target(Protocol):
    """What a sweep drives: the HTTP fleet, or the engine model on a virtual clock."""

    def now_ns(self) -> int:
        """The run's clock."""
        ...

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        """Take arrivals that follow all earlier ones, let time pass until `until_ns`, and report."""
        ...

    def retract(self) -> None:
        """Forget every arrival that is not due yet."""
        ...
