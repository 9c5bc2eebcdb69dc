"""The spec of the load generators."""

import math
from dataclasses import dataclass

from conf.io.check import require, require_positive, require_within

MOST_ACTORS, MOST_WARMUP = 10_000, 1_000_000


@dataclass(frozen=True, slots=True)
class Fleet:
    """The load generators: `actors` Ray actors with `cpus_per_actor` CPUs each.

    A request fails after `request_timeout_s`; None is `Experiment.request_timeout_s`.
    """

    name: str
    actors: int = 1
    cpus_per_actor: float = 1.0
    request_timeout_s: float | None = None
    drain_s: float = 30.0
    warmup_requests: int = 64
    record_itl: bool = True

    def __post_init__(self) -> None:
        require(self.actors >= 1, f"fleet.actors={self.actors} must be at least 1")
        cpus = f"fleet.cpus_per_actor={self.cpus_per_actor:g} must be finite and not negative"
        require(0 <= self.cpus_per_actor < math.inf, cpus)
        require_positive("fleet.", self, "drain_s")
        if self.request_timeout_s is not None:
            require_positive("fleet.", self, "request_timeout_s")
        warm = f"fleet.warmup_requests={self.warmup_requests} must be at least 1"
        require(self.warmup_requests >= 1, warm)
        require_within("fleet.", self, actors=MOST_ACTORS, warmup_requests=MOST_WARMUP)
