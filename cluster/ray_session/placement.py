"""Nodes of a Ray cluster: their roles, and whether they are enough."""

from collections.abc import Sequence

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
