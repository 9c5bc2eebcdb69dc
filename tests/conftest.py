"""What tests share: the golden run's report, and a Ray session per file, because starting one is slow."""

from collections.abc import Iterator
from pathlib import Path
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


@pytest.fixture(scope="session")
def golden_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the golden run."""
    from analysis import report
    from tests.golden import GOLDEN

    out = tmp_path_factory.mktemp("golden") / "report.html"
    report.command([GOLDEN], out)
    return out
