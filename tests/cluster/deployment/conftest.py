"""What tests of deployments share: a Ray session of two fake nodes."""

from typing import TYPE_CHECKING

import pytest

from conf.specs.experiment import Cluster, Routing
from tests.support.machine.shared_session import SharedSession

if TYPE_CHECKING:
    from cluster.ray_session.session import Session

FAKE = Cluster("two fake nodes", session="fake", nodes=2, gpus_per_node=8)


@pytest.fixture(scope="module")
def ray_session(shared_session: SharedSession) -> "Session":
    """Ray with Serve behind HAProxy: a head for load actors and two fake nodes of eight GPUs."""
    return shared_session.of(FAKE, Routing("leastconn"))
