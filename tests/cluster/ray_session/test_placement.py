"""Which GPUs a replica asks for, and what does not fit."""

import pytest

from cluster.ray_session.placement import Placement, PlacementError, place, require_nodes
from conf.specs.experiment import Cluster, Layout


def layout(tensor_parallel: int, replicas_per_node: int) -> Layout:
    return Layout("it", tensor_parallel, replicas_per_node, expert_parallel=True)


@pytest.mark.parametrize(
    ("session", "nodes", "roles", "shape", "replicas", "gpus", "selector"),
    [
        ("local", 1, (), (8, 1), 1, 8, {}),
        ("local", 1, {"gpu"}, (4, 2), 2, 4, {}),
        ("fake", 4, (), (4, 2), 8, 4, {"role": "load"}),
        ("fake", 4, {"gpu", "load"}, (4, 2), 8, 4, {"role": "load"}),
        ("address", 3, (), (4, 1), 3, 4, {}),
        ("address", 3, {"gpu"}, (4, 1), 3, 4, {}),
        ("address", 3, {"gpu", "load"}, (4, 1), 3, 4, {"role": "load"}),
    ],
)
def test_replicas_get_their_gpus_and_load_actors_the_nodes_kept_for_them(
    session: str,
    nodes: int,
    roles: set[str],
    shape: tuple[int, int],
    replicas: int,
    gpus: float,
    selector: dict[str, str],
) -> None:
    cluster = Cluster("it", session=session, nodes=nodes)  # type: ignore[arg-type]
    expected = Placement(replicas, ({"GPU": gpus, "CPU": 0.1},), selector)
    assert place(cluster, layout(*shape), roles) == expected


@pytest.mark.parametrize("gpus", [[8, 8], [0, 8, 8], [8, 16, 8]])
def test_enough_nodes(gpus: list[float]) -> None:
    require_nodes(Cluster("it", session="fake", nodes=2), gpus)


@pytest.mark.parametrize("gpus", [[], [8], [0, 4, 8], [16]])
def test_too_few_nodes_are_named(gpus: list[float]) -> None:
    with pytest.raises(PlacementError, match=r"cluster\.nodes=2 but Ray knows [01] nodes with 8 GPUs"):
        require_nodes(Cluster("it", session="fake", nodes=2), gpus)
