"""Cables that are cut and hosts that die in the middle of a sweep: the cause is named, the sweep goes on.

A busy machine may make other windows void, for its own reasons and no other.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.results import summary
from tests.hosts.conftest import Cluster
from tests.hosts.runs import Ended, await_window, measure
from tests.support.machine.patience import BUSY

pytestmark = [pytest.mark.hosts, pytest.mark.ray, pytest.mark.slow]

STRUCK = 1
"""The window in which a fault comes."""
GOES_ON = (summary.EXIT_OK, summary.EXIT_OPEN, summary.EXIT_VOID, summary.EXIT_SLO_MISSED)
"""Exit codes of a search that went on to its end; on a busy machine all its windows may be void."""


def check(ended: Ended, *expected: str) -> None:
    """The sweep went on to its end, no row is missing, and the fault or a busy machine voids windows."""
    assert ended.code in GOES_ON, ended.said
    assert any(event["event"] == "stop" and event["stop"] != "actor_lost" for event in ended.events), (
        ended.said
    )
    assert ended.is_whole(), ended.tree["requests"]
    reasons = set(ended.reasons)
    assert reasons & set(expected), (ended.reasons, ended.said)
    assert reasons <= {*expected, *BUSY}, (ended.reasons, ended.said)


def cut_for(cluster: Cluster, name: str, seconds: float) -> Callable[[Path], None]:
    """Cuts a host from everything for so long."""

    def then(folder: Path) -> None:
        await_window(folder, STRUCK)
        cluster.host(name).cut()
        time.sleep(seconds)
        cluster.host(name).plug()

    return then


def lost_s(ended: Ended, address: str) -> float:
    """Seconds for which a host could not be reached, by the run's table of hosts."""
    return sum(host["lost_s"] for host in ended.manifest["hosts"] if host["address"] == address)


@pytest.mark.parametrize("seconds", [10.0, 60.0])
def test_a_load_host_without_network_is_named_and_the_service_is_not_lost(
    cluster: Cluster, seconds: float
) -> None:
    ended = measure(cluster, f"load-{seconds:.0f}", "sweep", then=cut_for(cluster, "load2", seconds))
    check(ended, "load_host_lost")
    assert "target_lost" not in {event["event"] for event in ended.events}, ended.said
    assert "load2 (10.88.0.22)" in ended.said
    assert lost_s(ended, "10.88.0.22") > seconds / 2 and lost_s(ended, "10.88.0.21") == 0
    cluster.await_ray_again("load2")


def test_a_serving_node_without_network_is_named_and_waited_for(cluster: Cluster) -> None:
    ended = measure(cluster, "node-15", "sweep", then=cut_for(cluster, "node2", 15.0))
    check(ended, "node_lost", "replica_lost")
    assert "node_lost" in ended.reasons and "node2 (10.88.0.12)" in ended.said
    assert ended.tree["recoveries"] and lost_s(ended, "10.88.0.12") > 5
