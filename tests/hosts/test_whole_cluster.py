"""What works on five hosts without a fault: preflight, probes, a job from outside."""

import json

import pytest

from analysis import load_run
from analysis.results import summary
from tests.hosts.conftest import ADDRESSES, CLUSTER, Cluster
from tests.hosts.runs import GOES_ON, PROBE, SWEEP, Ended, measure
from tests.support.machine import tries

pytestmark = [pytest.mark.hosts, pytest.mark.ray, pytest.mark.slow]


def test_preflight_finds_every_host_and_the_clock_that_is_wrong(cluster: Cluster) -> None:
    done = cluster.run("python", "-m", "cluster", "preflight", *CLUSTER, "engine=simulated", "--json")
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert sorted(report["nodes"]) == sorted(ADDRESSES), "the data network's addresses, chosen by the units"
    failed = [(check["check"], check["node"]) for check in report["checks"] if check["status"] == "fail"]
    assert failed == [("clock", "10.88.0.22")] and report["exit_code"] == 5


def test_a_probe_over_two_nodes_and_two_load_hosts_is_valid(cluster: Cluster) -> None:
    """Hosts have no name for each other, two networks, and monotonic clocks that began at different times."""
    ends: list[Ended] = []

    def probed(number: int) -> dict[str, object]:
        ends.append(measure(cluster, f"probe-{number}", "probe", [*PROBE, "rate_qps=2", "duration_s=30"]))
        return ends[-1].tree

    tree = tries.valid(probed)
    ended = ends[-1]
    assert tree["exit_code"] == summary.EXIT_OK, ended.said
    assert ended.is_whole()
    actors = ended.manifest["load_actors"]
    assert {actor["host"] for actor in actors} == {"load1", "load2"}
    assert all(abs(actor["offset_us"]) > 1e6 * 10_000 for actor in actors), "the clocks do differ"
    assert len(set(ended.manifest["server"]["replica_nodes"].values())) == 2
    clock_ms = {host.get("name"): host.get("clock_offset_ms") for host in ended.manifest["hosts"]}
    assert abs(clock_ms["load1"]) < 1000 and 2000 < clock_ms["load2"] < 4000, "a wall clock that is 3 s ahead"
    assert tree["probe"]["limits"]["ttft"]["ms"]["value"] < 2000, "moves no latency"
    run = load_run(ended.folder)
    rows = run.requests().sort_by("due_ns").to_pylist()
    assert sorted(row["scheduled_at"] for row in rows) == [row["scheduled_at"] for row in rows], (
        "nor any date"
    )
    assert set(run.requests()["client_id"].to_pylist()) == {0, 1}


def test_a_short_sweep_sends_each_node_a_stream_of_its_own(cluster: Cluster) -> None:
    ended = measure(cluster, "per-node", "sweep", [*SWEEP, "routing=per_node"])
    assert ended.code in GOES_ON and ended.is_whole(), ended.said
    tries.refuse_other_reasons(ended.tree)
    rows = load_run(ended.folder).requests().to_pylist()
    replicas = {
        (row["stream"], row["replica_id"])
        for row in rows
        if row["status"] == "ok" and row["stream"] is not None
    }
    assert len(replicas) == 2 and {stream for stream, _ in replicas} == {0, 1}, replicas
    assert len(set(ended.manifest["server"]["urls"])) == 2
