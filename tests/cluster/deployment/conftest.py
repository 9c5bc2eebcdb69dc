"""Tests of deployments share one Ray session, because starting one takes some twenty CPU seconds."""

import pytest

from tests.conftest import fake_nodes

ray_session = pytest.fixture(scope="package")(fake_nodes)
