"""The spec of the cluster that a service is deployed on."""

from dataclasses import dataclass
from typing import Literal

from conf.io.check import require_at_least_one, require_not_negative, require_within

MOST_NODES, MOST_GPUS = 100_000, 1024
"""Limits beyond any cluster of today (our choice)."""


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
