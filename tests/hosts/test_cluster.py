"""Preflight of five hosts, a job from outside whose driver loses its network, and hosts that die."""

import json
import time

import pytest

from analysis import load_run
from tests.hosts.conftest import CLUSTER, LOADS, NODES, RUNS, Cluster, addresses
from tests.hosts.faults import LOAD, LOAD1, LOAD2, NODE, NODE2, Fault, check, strikes
from tests.hosts.network import ROOT
from tests.hosts.runs import GOES_ON, SWEEP, Ended, await_new_window, copied, measure
from tests.support.machine.patience import BUSY, START_S, until

pytestmark = [pytest.mark.hosts, pytest.mark.ray, pytest.mark.slow]

SUBMIT = (
    *("ray", "job", "submit", "--address", "http://127.0.0.1:8265"),
    *("--working-dir", str(ROOT / "tests" / "hosts")),
    *("--entrypoint-num-cpus", "0.5", "--entrypoint-label-selector", '{"role":"load"}'),
    *("--", "python", "-m", "loadgen"),
)
CUT_S = 12.0


def test_preflight_finds_every_host_and_the_clock_that_is_wrong(cluster: Cluster) -> None:
    done = cluster.run("python", "-m", "cluster", "preflight", *CLUSTER, "engine=simulated", "--json")
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert sorted(report["nodes"]) == sorted(addresses(NODES, LOADS)), (
        "the data network's addresses, chosen by the units"
    )
    failed = [(check["check"], check["node"]) for check in report["checks"] if check["status"] == "fail"]
    assert failed == [("clock", "10.88.0.22")] and report["exit_code"] == 5


def test_a_job_sends_each_node_its_stream_and_outlasts_a_cut_of_its_driver(cluster: Cluster) -> None:
    words = ("sweep", *SWEEP, "routing=per_node", RUNS, "run=job", "search.budget_s=25")
    job = cluster.begin(*SUBMIT, *words)
    folders = {name: cluster.host(name).disk / "runs" / "job" for name in ("load1", "load2")}
    until(lambda: any((it / "events.jsonl").exists() for it in folders.values()), "no run folder", START_S)
    name = next(name for name, folder in folders.items() if (folder / "events.jsonl").exists())
    await_new_window(folders[name], job)
    time.sleep(3)
    cluster.host(name).cut()
    time.sleep(CUT_S)
    cluster.host(name).plug()
    said, _ = job.communicate(timeout=START_S)
    cluster.await_ray_again(name)
    running = ("pgrep", "-f", "loadgen sweep")
    until(lambda: cluster.run(*running, on=name).returncode, "the driver hangs", START_S)
    again = cluster.run("python", "-m", "loadgen", "resume", "/tmp/runs/job", on=name)
    ended = Ended(said + again.stdout, again.returncode, copied(cluster, folders[name]))
    assert ended.code in GOES_ON and ended.is_whole(), ended.said
    expected = {"load_host_lost", "node_lost", "replica_lost", "actor_lost"}
    assert set(ended.reasons) <= {*BUSY, *expected}, ended.said
    verdicts = [event["verdict"] for event in ended.events if event["event"] == "window_done"]
    assert any(it.startswith("VOID load_host_lost") for it in verdicts), "a run all void is begun again"
    assert not [path for path in folders.values() if path != folders[name] and path.exists()], "rows left"
    assert {actor["host"] for actor in ended.manifest["load_actors"]} == {"load1", "load2"}
    assert len(set(ended.manifest["server"]["urls"])) == 2
    rows = load_run(ended.folder).requests().to_pylist()
    answered = [row for row in rows if row["status"] == "ok" and row["stream"] is not None]
    pairs = {(row["replica_id"], row["stream"]) for row in answered}
    assert {stream for _, stream in pairs} == {0, 1} and len(dict(pairs)) == len(pairs), (
        "one for each replica"
    )


def test_hosts_that_die_are_replaced_by_others(cluster: Cluster) -> None:
    def new_node_while_load_host_is_cut(cluster: Cluster) -> None:
        """For a minute, after which Ray has given the load host up."""
        until_s = time.monotonic() + 60
        cluster.host("load2").cut()
        cluster.host("node2").power_off()
        cluster.start("gpu", {13: "node3"})
        time.sleep(max(0.0, until_s - time.monotonic()))
        cluster.host("load2").plug()

    faults = (
        Fault(new_node_while_load_host_is_cut, (LOAD,), (LOAD2, NODE2), (NODE, "replica_lost", "actor_lost")),
        Fault(lambda it: it.host("load1").power_off(), (), (LOAD1,), (LOAD, "actor_lost")),
    )
    windows: list[int] = []
    then = strikes(cluster, faults, windows, lambda: None)
    ended = measure(cluster, "deaths", "sweep", [*SWEEP, "search.budget_s=40"], then)
    check(ended, faults, windows)
    assert ended.code in GOES_ON and "actor_lost" not in ended.stops, ended.said
    addresses = {facts["host"] for facts in ended.manifest["server"]["replicas"].values()}
    assert addresses == {"10.88.0.11", "10.88.0.13"}, "the manifest says where the replicas are now"
    assert {actor["host"] for actor in ended.manifest["load_actors"][-2:]} == {"load2"}, ended.said
