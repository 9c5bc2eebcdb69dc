"""`cluster.preflight.checks` and `judges`: which nodes serve, and which GPU is the expected one."""

from dataclasses import replace

import pytest

from cluster.preflight.checks import Expected, InspectedNode, Node
from cluster.preflight.judges import gpus
from cluster.ray_session.placement import LOAD_ROLE
from tests.support.machine.healthy_node import HBM, HEALTHY, healthy_gpu

MI325X = Expected("vllm", 1, 8, "MI325X", "gfx942", HBM)
WITHOUT_GPUS = replace(HEALTHY, gpus=())


@pytest.mark.parametrize(
    ("role", "ray_gpus", "host", "serves"),
    [
        ("", 8.0, HEALTHY, True),
        ("gpu", 0.0, WITHOUT_GPUS, True),
        ("", 8.0, WITHOUT_GPUS, True),
        ("head", 0.0, WITHOUT_GPUS, False),
        (LOAD_ROLE, 8.0, HEALTHY, False),
    ],
    ids=["GPUs", "role gpu", "pretended GPUs", "a head without GPUs", "kept for load"],
)
def test_engines_run_where_gpus_are_and_no_load_actors(role, ray_gpus, host, serves) -> None:
    assert InspectedNode(Node("n", role, ray_gpus, False), host).serves is serves


@pytest.mark.parametrize(
    ("name", "arch", "status"),
    [
        ("AMD Instinct MI325X", "gfx942", "pass"),
        ("AMD Radeon Graphics", "gfx942", "pass"),
        ("AMD Instinct MI325X", "gfx950", "fail"),
        ("AMD Instinct MI300X", "gfx942", "fail"),
        ("AMD Radeon Graphics", None, "fail"),
    ],
)
def test_a_gpu_is_the_expected_one_by_its_name_and_its_architecture(name, arch, status) -> None:
    seen = tuple(replace(healthy_gpu(index), name=name, arch=arch) for index in range(8))
    node = InspectedNode(Node("n", "gpu", 8.0, False), replace(HEALTHY, gpus=seen))
    assert gpus(node, MI325X).status == status
