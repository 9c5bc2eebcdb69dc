"""cluster/ray_session/host_watch.py: when a host counts as silent, and since when."""

import threading
from collections import defaultdict
from dataclasses import replace

import pytest

from cluster.ray_session import host_watch
from cluster.ray_session.host_watch import HostLog, HostWatch, WatchedHost, hosts_of
from conf.host_outage import HostOutage
from tests.support.machine.patience import until

HOST = WatchedHost("load1", "10.0.0.9", 6380)


def test_an_outage_lasts_from_the_last_answer_to_the_next() -> None:
    log = HostLog(HOST)
    for at_ns, reason in (
        (0, "not yet"),
        (100, ""),
        (200, ""),
        (0, "timed out"),
        (0, "No route to host"),
        (900, ""),
        (950, ""),
    ):
        if reason:
            log.silent(reason)
        else:
            log.answered(at_ns)
    assert log.outages == [HostOutage("load1", "10.0.0.9", False, "timed out", 200, 900)]


def test_nodes_are_watched_at_the_port_of_their_node_manager() -> None:
    node = {"NodeManagerAddress": "a", "NodeManagerHostname": "one", "NodeManagerPort": 6380}
    nodes = [node, node | {"NodeManagerAddress": "b"}]
    assert hosts_of(nodes, {"a"}) == [WatchedHost("one", "a", 6380, True), WatchedHost("one", "b", 6380)]


class Cables:
    """Hosts by address, each of which answers unless its cable is cut."""

    def __init__(self) -> None:
        self.cut: set[str] = set()
        self.tries: dict[str, int] = defaultdict(int)
        self._lock = threading.Lock()

    def reach(self, host: WatchedHost) -> None:
        with self._lock:
            self.tries[host.address] += 1
            if host.address in self.cut:
                raise OSError(113, "No route to host")


@pytest.fixture
def cables(monkeypatch: pytest.MonkeyPatch) -> Cables:
    monkeypatch.setattr(host_watch, "PERIOD_S", 0.01)
    return Cables()


def test_a_host_that_is_cut_is_silent_until_it_is_back(cables: Cables) -> None:
    watch = HostWatch(cables.reach)
    watch.follow([HOST, WatchedHost("node1", "10.0.0.2", 6380, True)])
    until(lambda: len(cables.tries) == 2)
    cables.cut.add("10.0.0.2")
    until(watch.outages)
    (outage,) = watch.outages()
    assert (outage.name, outage.serves, outage.reason, outage.until_ns) == (
        "node1",
        True,
        "No route to host",
        None,
    )
    cables.cut.clear()
    watch.settle()
    (outage,) = watch.outages()
    assert outage.until_ns is not None and outage.until_ns > outage.from_ns
    watch.close()


@pytest.mark.parametrize(
    "instead", [WatchedHost("load2", "10.0.0.10", 6380), HOST], ids=["another host", "another role"]
)
def test_the_outage_of_a_host_that_was_replaced_ends(cables: Cables, instead: WatchedHost) -> None:
    watch = HostWatch(cables.reach)
    watch.follow([replace(HOST, serves=True)])
    until(lambda: cables.tries["10.0.0.9"] > 1)
    cables.cut.add("10.0.0.9")
    until(watch.outages)
    watch.follow([instead])
    assert [outage.until_ns is None for outage in watch.outages()] == [False]
    watch.close()
