"""Which GPUs a replica asks for, and what does not fit."""

import pytest

from cluster.placement import Placement, PlacementError, place, require_nodes
from conf.schema import Cluster, Layout


def layout(tensor_parallel: int, replicas_per_node: int) -> Layout:
    return Layout("it", tensor_parallel, replicas_per_node, expert_parallel=True)


@pytest.mark.parametrize(
    ("session", "nodes", "shape", "replicas", "gpus", "selector"),
    [
        ("local", 1, (8, 1), 1, 8, {}),
        ("local", 1, (4, 2), 2, 4, {}),
        ("fake", 4, (4, 2), 8, 4, {"role": "!gpu"}),
        ("address", 3, (4, 1), 3, 4, {"role": "!gpu"}),
    ],
)
def test_every_replica_gets_its_gpus_on_one_node(
    session: str, nodes: int, shape: tuple[int, int], replicas: int, gpus: float, selector: dict[str, str]
) -> None:
    cluster = Cluster("it", session=session, nodes=nodes)  # type: ignore[arg-type]
    assert place(cluster, layout(*shape)) == Placement(replicas, ({"GPU": gpus, "CPU": 0.1},), selector)


def test_a_layout_larger_than_a_node_is_refused() -> None:
    with pytest.raises(PlacementError, match="layout it needs 16 GPUs per node but cluster tiny has 8"):
        place(Cluster("tiny"), layout(8, 2))


def test_a_local_session_is_one_node() -> None:
    with pytest.raises(PlacementError, match="use cluster.session=fake"):
        place(Cluster("laptop", nodes=2), layout(8, 1))


@pytest.mark.parametrize("gpus", [[8, 8], [0, 8, 8], [8, 16, 8]])
def test_enough_nodes(gpus: list[float]) -> None:
    require_nodes(Cluster("it", session="fake", nodes=2), gpus)


@pytest.mark.parametrize("gpus", [[], [8], [0, 4, 8], [16]])
def test_too_few_nodes_are_named(gpus: list[float]) -> None:
    with pytest.raises(PlacementError, match=r"cluster\.nodes=2 but Ray knows [01] nodes with 8 GPUs"):
        require_nodes(Cluster("it", session="fake", nodes=2), gpus)
