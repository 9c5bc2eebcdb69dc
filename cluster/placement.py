"""Which resources a replica takes and where load actors may run; pure, knows no Ray."""

from collections.abc import Sequence
from dataclasses import dataclass

from conf.schema import Cluster, Layout

REPLICA_CPUS = 0.1
"""Nominal share of a CPU per replica: enough to be counted, too little to decide where it goes."""


class PlacementError(ValueError):
    """The replicas do not fit the nodes; the message is one line with the remedy."""


@dataclass(frozen=True, slots=True)
class Placement:
    """`replicas` times `bundles`, each set on one node (STRICT_PACK).

    `load_selector` are the node labels Ray is to ask for when it places a load actor.
    """

    replicas: int
    bundles: tuple[dict[str, float], ...]
    load_selector: dict[str, str]


def place(cluster: Cluster, layout: Layout) -> Placement:
    """The placement of a layout on a cluster. Raises PlacementError when a node is too small."""
    if cluster.session == "local" and cluster.nodes != 1:
        raise PlacementError(
            f"cluster.session=local is one node but cluster.nodes={cluster.nodes}; use cluster.session=fake"
        )
    asked = layout.tensor_parallel * layout.replicas_per_node
    if asked > cluster.gpus_per_node:
        raise PlacementError(
            f"layout {layout.name} needs {asked} GPUs per node but cluster {cluster.name} has "
            f"{cluster.gpus_per_node}; choose a smaller layout"
        )
    bundle = {"GPU": float(layout.tensor_parallel), "CPU": REPLICA_CPUS}
    # A local session has one node, which holds replicas and load actors alike.
    selector = {} if cluster.session == "local" else {"role": "!gpu"}
    return Placement(cluster.nodes * layout.replicas_per_node, (bundle,), selector)


def require_nodes(cluster: Cluster, gpus_by_node: Sequence[float]) -> None:
    """Raise PlacementError unless `cluster.nodes` of the alive nodes have the GPUs a node should have."""
    fit = sum(gpus >= cluster.gpus_per_node for gpus in gpus_by_node)
    if fit < cluster.nodes:
        raise PlacementError(
            f"cluster.nodes={cluster.nodes} but Ray knows {fit} nodes with {cluster.gpus_per_node} GPUs "
            f"or more; start nodes with --num-gpus, or lower cluster.nodes"
        )
