"""Tests of deployments share one Ray session, because starting one takes some twenty CPU seconds."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from conf.specs.experiment import Cluster, Routing

if TYPE_CHECKING:
    from cluster.ray_session.session import Session

FAKE = Cluster("two fake nodes", session="fake", nodes=2, gpus_per_node=8)


@pytest.fixture(scope="package")
def ray_session() -> Iterator["Session"]:
    """Ray with Serve behind HAProxy: a head for load actors and two fake nodes of eight GPUs."""
    from cluster.ray_session.session import open_session

    with open_session(FAKE, Routing("leastconn"), load_cpus=1) as session:
        yield session
