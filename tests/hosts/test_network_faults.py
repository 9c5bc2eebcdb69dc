"""Cables that are cut and hosts that die in the middle of a sweep: the cause is named, the sweep goes on.

A busy machine may make other windows void, for its own reasons and no other.
"""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.hosts.conftest import Cluster
from tests.hosts.runs import GOES_ON, Ended, await_window, measure
from tests.support.machine.patience import BUSY

pytestmark = [pytest.mark.hosts, pytest.mark.ray, pytest.mark.slow]

STRUCK = 1
"""The window in which a fault comes."""


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


def test_a_head_without_network_makes_windows_void_and_nothing_hangs(cluster: Cluster) -> None:
    ended = measure(cluster, "head-10", "sweep", then=cut_for(cluster, "head", 10.0))
    check(ended, "node_lost", "load_host_lost", "replica_lost", "actor_lost")


def test_a_load_host_that_dies_is_replaced_on_another(cluster: Cluster) -> None:
    def then(folder: Path) -> None:
        await_window(folder, STRUCK)
        cluster.host("load2").power_off()

    ended = measure(cluster, "load-dead", "sweep", then=then)
    check(ended, "load_host_lost")
    assert {actor["host"] for actor in ended.manifest["load_actors"][2:]} == {"load1"}, ended.said
    cluster.start("load2", 22, "load")


def test_a_dead_node_is_replaced_by_a_host_of_another_address(cluster: Cluster) -> None:
    def then(folder: Path) -> None:
        await_window(folder, STRUCK)
        cluster.host("node2").power_off()
        cluster.start("node3", 13, "gpu")

    ended = measure(cluster, "node-new", "sweep", then=then)
    check(ended, "node_lost", "replica_lost")
    addresses = {facts["host"] for facts in ended.manifest["server"]["replicas"].values()}
    assert addresses == {"10.88.0.11", "10.88.0.13"}, "the manifest says where the replicas are now"


def test_a_full_disk_of_a_load_host_is_told_with_its_name(cluster: Cluster) -> None:
    host = cluster.host("load2")
    fill = host.disk / "fill"

    def then(folder: Path) -> None:
        await_window(folder, STRUCK)
        with suppress(OSError), fill.open("wb") as file:
            while True:
                file.write(bytes(2**20))

    try:
        ended = measure(cluster, "full", "sweep", then=then)
    finally:
        fill.unlink()
    assert re.search(r"load2 \(10\.88\.0\.22\) \(.*No space left on device", ended.said), ended.said
    assert ended.is_whole()
