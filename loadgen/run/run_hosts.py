"""The hosts of a run: their outages on the run's clock, and the table of them for the manifest."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from conf.host_outage import HostOutage
from loadgen.fleet.fleet import LoadFleet, Member
from loadgen.fleet.process import wall_less_monotonic_ns
from loadgen.traffic.schedule import NS


def outages(fleet: LoadFleet) -> Sequence[HostOutage]:
    """All outages so far, on the run's clock, with the load actors on each host."""
    return [_on_run_clock(fleet, outage) for outage in fleet.hosts.outages()]


def _on_run_clock(fleet: LoadFleet, outage: HostOutage) -> HostOutage:
    until_ns, members = outage.until_ns, [each for each in fleet.members if _was_at(each, outage)]
    lost_ns = [member.lost_ns for member in members if member.lost_ns is not None]
    if members and len(lost_ns) == len(members) and not outage.serves:
        # Without a load actor the host matters no more.
        until_ns = min(max(lost_ns), until_ns or max(lost_ns))
    return replace(
        outage,
        from_ns=fleet.run_ns(outage.from_ns),
        until_ns=None if until_ns is None else fleet.run_ns(until_ns),
        clients=frozenset(member.client_id for member in members),
    )


def _was_at(member: Member, outage: HostOutage) -> bool:
    """True if a load actor was on a host, and not given up, at some time of its outage."""
    is_there = member.place is not None and member.place.address == outage.address
    began_in_time = outage.until_ns is None or member.began_ns <= outage.until_ns
    return is_there and began_in_time and (member.lost_ns is None or member.lost_ns >= outage.from_ns)


def table(fleet: LoadFleet, rows: pa.Table, servers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each host: role, address, offset of its wall clock, lost seconds, requests.

    `servers` are what each generation of the service reported. A load host's requests are those that it sent,
    a serving node's those that it answered.
    """
    by_client, by_replica = (_counts(rows, name) for name in ("client_id", "replica_id"))
    hosts: dict[str, dict[str, Any]] = {}
    replicas = [replica for server in servers for replica in server.get("replicas", {}).items()]
    for replica, address in {name: facts["host"] for name, facts in replicas if "host" in facts}.items():
        host = hosts.setdefault(address, {"address": address, "role": "serves", "requests": 0})
        host["requests"] += by_replica.get(replica, 0)
    for member in fleet.members:
        if member.place:
            address = member.place.address
            host = hosts.setdefault(address, {"address": address, "role": "load", "requests": 0})
            offset_ns = member.offset.offset_ns + member.place.wall_ns - wall_less_monotonic_ns()
            host |= {"name": member.place.host, "clock_offset_ms": offset_ns / 1e6}
            host |= {"clock_within_ms": member.offset.doubt_ns / 1e6}
            host["requests"] += by_client.get(member.client_id, 0)
    now_ns = fleet.now_ns()
    lost_s: dict[str, float] = dict.fromkeys(hosts, 0)
    for outage in fleet.hosts.outages():
        if outage.address in hosts:
            until_ns = now_ns if outage.until_ns is None else fleet.run_ns(outage.until_ns)
            lost_s[outage.address] += (until_ns - fleet.run_ns(outage.from_ns)) / NS
    return [host | {"lost_s": lost_s[address]} for address, host in sorted(hosts.items())]


def _counts(rows: pa.Table, name: str) -> dict[Any, int]:
    counted = pc.value_counts(rows[name].combine_chunks()).to_pylist()
    return {item["values"]: item["counts"] for item in counted}
