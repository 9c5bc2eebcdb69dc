"""Which GPUs a replica asks for, and what does not fit."""

from dataclasses import replace

import pytest

from cluster.ray_session.placement import Placement, PlacementError, place, require_nodes
from conf.specs.experiment import Cluster, Layout, PrefillEngines


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


def test_both_sides_of_a_split_layout_get_gpus_of_their_own() -> None:
    split = replace(layout(4, 1), prefill=PrefillEngines(per_node=2, tensor_parallel=2))
    placement = place(Cluster("it", session="fake", nodes=3), split)
    decode, prefill = {"GPU": 4.0, "CPU": 0.1}, {"GPU": 2.0, "CPU": 0.1}
    assert placement == Placement(3, (decode,), {"role": "load"}, 6, (prefill,))


def test_a_replica_of_several_ranks_gets_the_gpus_of_all() -> None:
    ranks = replace(layout(2, 1), data_parallel=4)
    assert place(Cluster("it", session="local"), ranks).bundles == ({"GPU": 8.0, "CPU": 0.1},)


@pytest.mark.parametrize("gpus", [[8, 8], [0, 8, 8], [8, 16, 8]])
def test_enough_nodes(gpus: list[float]) -> None:
    require_nodes(Cluster("it", session="fake", nodes=2), gpus)


@pytest.mark.parametrize("gpus", [[], [8], [0, 4, 8], [16]])
def test_too_few_nodes_are_named(gpus: list[float]) -> None:
    with pytest.raises(PlacementError, match=r"cluster\.nodes=2 but Ray knows [01] nodes with 8 GPUs"):
        require_nodes(Cluster("it", session="fake", nodes=2), gpus)
