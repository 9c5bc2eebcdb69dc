"""Placement of replicas and load actors: resources and node labels; pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from conf.specs.experiment import Cluster, Layout

REPLICA_CPUS = 0.1
"""Nominal CPU share of a replica: enough to be counted, too little to decide its node."""

LOAD_ROLE = "load"
"""Value of the node label `role` of the nodes kept for load actors (`ray start --labels role=load`)."""


class SessionError(Exception):
    """No usable session or cluster; the message is one line with the remedy."""


class PlacementError(ValueError):
    """The nodes are too few or too small; the message is one line with the remedy."""


@dataclass(frozen=True, slots=True)
class Placement:
    """`replicas` times `bundles`, each set on one node (STRICT_PACK).

    In a split layout those replicas decode, and there are `prefill_replicas` times `prefill_bundles` besides.
    `load_selector` are the node labels that a load actor needs; if it is empty, load actors run on any node,
    beside replicas if need be.
    """

    replicas: int
    bundles: tuple[dict[str, float], ...]
    load_selector: dict[str, str]
    prefill_replicas: int = 0
    prefill_bundles: tuple[dict[str, float], ...] = ()


def place(cluster: Cluster, layout: Layout, roles: Collection[str] = ()) -> Placement:
    """The placement for the layout and cluster of one experiment, which has checked that they fit.

    `roles` are the values of the label `role` on the alive nodes (`Session.roles`). Load actors need nodes
    with role=load if there are any: always in a `fake` session, never in a `local` one, whose only node
    holds replicas and load actors. Nodes of a joined cluster may have no label.
    """
    kept = cluster.session == "fake" or LOAD_ROLE in roles
    selector = {"role": LOAD_ROLE} if kept else {}
    placement = Placement(cluster.nodes * layout.replicas_per_node, _bundles(layout), selector)
    if (prefill := layout.prefill_side) is None:
        return placement
    return replace(
        placement,
        prefill_replicas=cluster.nodes * prefill.replicas_per_node,
        prefill_bundles=_bundles(prefill),
    )


def _bundles(layout: Layout) -> tuple[dict[str, float], ...]:
    """The resources that one replica of a layout takes."""
    return ({"GPU": float(layout.gpus_per_replica), "CPU": REPLICA_CPUS},)


def require_nodes(cluster: Cluster, gpus_by_node: Sequence[float]) -> None:
    """Raise PlacementError unless `cluster.nodes` of the alive nodes have the GPUs a node should have."""
    fit = sum(gpus >= cluster.gpus_per_node for gpus in gpus_by_node)
    if fit < cluster.nodes:
        raise PlacementError(
            f"cluster.nodes={cluster.nodes} but Ray knows {fit} nodes with {cluster.gpus_per_node} GPUs "
            f"or more; start nodes with --num-gpus, or lower cluster.nodes"
        )
