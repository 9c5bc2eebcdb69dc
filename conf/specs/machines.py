"""Specs of the machines: nodes, their accelerator, and the load generators."""

from dataclasses import dataclass
from typing import Literal

from conf.io.check import require_at_least_one, require_not_negative, require_positive, require_within
from conf.specs.step_time import Efficiency

MOST_NODES, MOST_GPUS = 100_000, 1024
"""Limits beyond any cluster of today (our choice)."""
MOST_ACTORS, MOST_WARMUP = 10_000, 1_000_000


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes that the experiment runs on.

    `session` is `local` (one Ray node on this machine), `fake` (one Ray process group per node,
    all on this machine) or `address` (join the cluster at `address`). With `engine=external`,
    `nodes` counts the nodes behind the endpoints. A sweep that loses its service waits up to `recovery_s` for
    its return, in real seconds that its budget does not count; 0 ends the sweep at once.
    """

    name: str
    session: Literal["local", "fake", "address"] = "local"
    address: str = "auto"
    nodes: int = 1
    gpus_per_node: int = 8
    recovery_s: float = 300.0

    def __post_init__(self) -> None:
        require_not_negative("cluster.", self, "recovery_s")
        require_at_least_one("cluster.", self, "nodes", "gpus_per_node")
        require_within("cluster.", self, nodes=MOST_NODES, gpus_per_node=MOST_GPUS)


@dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator. Unknown figures are null, never zero, and cannot be used.

    `link_bytes_per_s` is one direction of one link; a `mesh` has `links` of them, one per peer;
    behind a `switch` one fat link per GPU is shared by all peers (`links` = 1).
    """

    name: str
    arch: str
    hbm_bytes: float
    hbm_bytes_per_s: float
    efficiency: Efficiency
    source: str
    bf16_flop_per_s: float | None = None
    fp8_flop_per_s: float | None = None
    fp4_flop_per_s: float | None = None
    topology: Literal["mesh", "switch"] = "mesh"
    links: int = 7
    link_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        unknowable = ("bf16_flop_per_s", "fp8_flop_per_s", "fp4_flop_per_s", "link_bytes_per_s")
        require_positive("hardware.", self, "hbm_bytes", "hbm_bytes_per_s", "links", *unknowable)


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
        require_positive("fleet.", self, "drain_s", "request_timeout_s")
        require_within("fleet.", self, actors=MOST_ACTORS, warmup_requests=MOST_WARMUP)
