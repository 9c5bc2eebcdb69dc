"""Nodes that are too few or too small."""

import pytest

from cluster.ray_session.placement import PlacementError, require_nodes
from conf.specs.experiment import Cluster


@pytest.mark.parametrize("gpus", [[8, 8], [0, 8, 8], [8, 16, 8]])
def test_enough_nodes(gpus: list[float]) -> None:
    require_nodes(Cluster("it", session="fake", nodes=2), gpus)


@pytest.mark.parametrize("gpus", [[], [8], [0, 4, 8], [16]])
def test_too_few_nodes_are_named(gpus: list[float]) -> None:
    with pytest.raises(PlacementError, match=r"cluster\.nodes=2 but Ray knows [01] nodes with 8 GPUs"):
        require_nodes(Cluster("it", session="fake", nodes=2), gpus)
