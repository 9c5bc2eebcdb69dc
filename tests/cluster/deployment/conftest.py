"""What tests of deployments share: a Ray session of two fake nodes."""

from typing import TYPE_CHECKING

import pytest

from tests.support.machine.shared_session import SharedSession

if TYPE_CHECKING:
    from cluster.ray_session.session import Session


@pytest.fixture(scope="module")
def ray_session(shared_session: SharedSession) -> "Session":
    """Ray with Serve behind HAProxy: a head for load actors and two fake nodes of eight GPUs."""
    return shared_session.fake()
