"""The spec of the load generators."""

from dataclasses import dataclass

from conf.io.check import require_at_least_one, require_not_negative, require_positive, require_within

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
        require_at_least_one("fleet.", self, "actors", "warmup_requests")
        require_not_negative("fleet.", self, "cpus_per_actor")
        require_positive("fleet.", self, "drain_s")
        if self.request_timeout_s is not None:
            require_positive("fleet.", self, "request_timeout_s")
        require_within("fleet.", self, actors=MOST_ACTORS, warmup_requests=MOST_WARMUP)
