"""What tests share: a Ray session per file, because starting one takes many seconds and a process has one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from conf.schema import Cluster, Routing

if TYPE_CHECKING:
    from cluster.session import Session

FAKE = Cluster("two fake nodes", session="fake", nodes=2, gpus_per_node=8)


@pytest.fixture(scope="module")
def ray_session() -> Iterator["Session"]:
    """Ray with Serve behind HAProxy: a head for load actors and two fake nodes of eight GPUs."""
    from cluster.session import open_session

    with open_session(FAKE, Routing("leastconn"), load_cpus=1) as session:
        yield session
