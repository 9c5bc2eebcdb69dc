"""The service under load as a run is handed it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from conf.io.access import DEFAULT_ACCESS, Access
from loadgen.run.power_sampler import PowerSource


@dataclass(frozen=True, slots=True)
class Service:
    """The service under load: its addresses, the replicas expected in answers, and what it reports of itself.

    `replicas` is None if answers do not name theirs. `metrics_urls` maps a replica (or an endpoint) to the
    address of its metrics. `recover` waits for up to so many seconds until the service is whole again and
    returns it as it is then, or raises TargetError; None if nothing is known of its return. A proxy in
    front of it serves `front_streams` requests at once; None if there is none, or nothing is known of it.
    `power` reads the power of its nodes; without it `power_unknown` says why nothing does.
    """

    urls: list[str]
    replicas: frozenset[str] | None = None
    fault: Callable[[], str | None] = lambda: None
    reported: dict[str, Any] = field(default_factory=dict)
    metrics_urls: dict[str, str] = field(default_factory=dict)
    actor_options: dict[str, Any] = field(default_factory=dict)
    access: Access = DEFAULT_ACCESS
    recover: "Callable[[float], Service] | None" = None
    front_streams: int | None = None
    power: PowerSource | None = None
    power_unknown: str = ""
