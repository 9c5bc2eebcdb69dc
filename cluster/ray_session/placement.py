"""The nodes of a Ray cluster: roles, number, whether a head runs here. Does not import Ray (seconds)."""

import os
from collections.abc import Sequence
from pathlib import Path

from conf.specs.experiment import Cluster

LOAD_ROLE = "load"
"""Value of the node label `role` of the nodes kept for load actors (`ray start --labels role=load`)."""


class SessionError(Exception):
    """No usable session or cluster; the message is one line with the remedy."""


class PlacementError(ValueError):
    """The nodes are too few or too small; the message is one line with the remedy."""


def require_nodes(cluster: Cluster, gpus_by_node: Sequence[float]) -> None:
    """Raise PlacementError unless `cluster.nodes` of the alive nodes have the GPUs a node should have."""
    fit = sum(gpus >= cluster.gpus_per_node for gpus in gpus_by_node)
    if fit < cluster.nodes:
        raise PlacementError(
            f"cluster.nodes={cluster.nodes} but Ray knows {fit} nodes with {cluster.gpus_per_node} GPUs "
            f"or more; start nodes with --num-gpus, or lower cluster.nodes"
        )


PROCESSES = Path("/proc")
HEAD = b"gcs_server"
"""The process of every Ray head, as the kernel names it."""
ADDRESS = "RAY_ADDRESS"
"""Ray's environment variable with the address of a cluster."""
NO_CLUSTER = (
    f"no Ray cluster: {ADDRESS} is not set and no Ray head runs on this machine; start one with "
    "`ray start --head`, or give its address, cluster.address=HOST:PORT"
)


def head_is_missing(address: str, processes: Path = PROCESSES) -> bool:
    """True if `address` is "auto" and surely leads nowhere; where no process list tells, that is unknown."""
    if address != "auto" or os.environ.get(ADDRESS) or not processes.is_dir():
        return False
    return not any(_name(process) == HEAD for process in processes.glob("[0-9]*"))


def _name(process: Path) -> bytes:
    try:
        return (process / "comm").read_bytes().strip()
    except OSError:  # it has ended
        return b""
