"""loadgen/run/run_hosts.py: the hosts of a run, with what each lost and did."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from analysis.report.provenance import hosts_table
from analysis.rows import records
from conf.host_outage import HostOutage
from loadgen.fleet.fleet import Member
from loadgen.fleet.load_actor import Place
from loadgen.fleet.process import ClockOffset, limits, wall_less_monotonic_ns
from loadgen.run.run_hosts import RunHosts
from loadgen.traffic.schedule import NS

SHIFT_NS = 3 * NS


class Fleet:
    """One load actor on a host whose wall clock is 3 s ahead; the run began at 10 s, monotonic."""

    def __init__(self) -> None:
        wall_ns = wall_less_monotonic_ns() + SHIFT_NS
        actor: Any = None
        place = Place(4, "n", "load1", "10.0.0.9", 1, wall_ns, limits())
        self.members = [Member(4, 0, actor, place, ClockOffset(0, 1_000_000), began_ns=11 * NS)]

    def now_ns(self) -> int:
        return 90 * NS

    def run_ns(self, monotonic_ns: int) -> int:
        return monotonic_ns - 10 * NS


class Source:
    """Two outages, one of which still lasts."""

    patience_s = 1.0

    def outages(self) -> list[HostOutage]:
        node = HostOutage("node1", "10.0.0.2", True, "timed out", 40 * NS, 52 * NS)
        return [node, HostOutage("load1", "10.0.0.9", False, "timed out", 70 * NS)]


@pytest.fixture
def fleet() -> Any:
    return Fleet()


@pytest.fixture
def hosts(fleet: Any) -> RunHosts:
    return RunHosts(Source(), fleet)


def test_outages_are_on_the_runs_clock_with_the_load_actors_of_their_host(hosts: RunHosts) -> None:
    node, load = hosts.outages()
    assert (node.from_ns, node.until_ns, node.loads, node.clients) == (30 * NS, 42 * NS, False, frozenset())
    assert (load.from_ns, load.until_ns, load.loads, load.clients) == (60 * NS, None, True, frozenset({4}))


@pytest.mark.parametrize(
    ("lost_s", "until_s", "clients"), [(75, 65, {4}), (69, None, set())], ids=["in the outage", "before it"]
)
def test_an_outage_matters_until_the_last_load_actor_of_the_host_is_given_up(
    fleet: Any, hosts: RunHosts, lost_s: int, until_s: int | None, clients: set[int]
) -> None:
    fleet.members[0].lost_ns = lost_s * NS
    _, load = hosts.outages()
    assert (load.until_ns, load.clients) == (until_s and until_s * NS, clients)
    fleet.members.append(replace(fleet.members[0], client_id=5, began_ns=(lost_s + 1) * NS, lost_ns=None))
    _, load = hosts.outages()
    assert (load.until_ns, load.clients) == (None, {*clients, 5})


def test_the_table_has_role_clock_lost_seconds_and_requests_of_each_host(hosts: RunHosts) -> None:
    rows = pa.Table.from_pylist(
        [{"client_id": 4, "replica_id": replica} for replica in ("r0", "r0", "r1", None)], records.PROGRESS
    )
    node, load = hosts.table(rows, {"r0": "10.0.0.2"})
    assert node == {"address": "10.0.0.2", "role": "serves", "requests": 2, "lost_s": 12.0}
    assert (load["name"], load["role"], load["requests"], load["lost_s"]) == ("load1", "load", 4, 30.0)
    assert load["clock_offset_ms"] == pytest.approx(3000, abs=50)
    cells = hosts_table([node, load]).rows
    assert cells[0] == ("10.0.0.2", "serves", "", "12", "2") and cells[1][0] == "load1 10.0.0.9"
