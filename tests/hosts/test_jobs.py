"""Jobs submitted from outside, with the driver on a load host: rows are collected, cables are cut."""

import time

import pytest

from tests.hosts.conftest import CLUSTER, RUNS, Cluster
from tests.hosts.network import ROOT
from tests.hosts.runs import GOES_ON, PROBE, SWEEP, Ended, await_window, copied
from tests.support.machine.patience import BUSY, START_S, until

pytestmark = [pytest.mark.hosts, pytest.mark.ray, pytest.mark.slow]

SUBMIT = (
    "ray",
    "job",
    "submit",
    "--address",
    "http://127.0.0.1:8265",
    "--working-dir",
    str(ROOT / "tests" / "hosts"),
)
ON_LOAD = ("--entrypoint-num-cpus", "0.5", "--entrypoint-label-selector", '{"role":"load"}')


def test_a_job_from_outside_collects_the_rows_of_both_load_hosts(cluster: Cluster) -> None:
    words = ("python", "-m", "loadgen", "probe", *CLUSTER, "engine=simulated", RUNS, "run=job", *PROBE)
    done = cluster.run(*SUBMIT, *ON_LOAD, "--", *words, "rate_qps=2", "duration_s=20")
    folders = [cluster.host(name).disk / "runs" / "job" for name in ("load1", "load2")]
    (folder,) = [folder for folder in folders if (folder / "sweep.json").exists()]
    ended = Ended(done.stdout, done.returncode, copied(cluster, folder))
    assert ended.code in (0, 1) and ended.is_whole(), ended.said
    assert {actor["host"] for actor in ended.manifest["load_actors"]} == {"load1", "load2"}
    (other,) = [each for each in folders if each != folder]
    assert not other.exists(), "nothing is left on the other host's disk"


def test_a_driver_without_network_does_not_hang_and_resume_goes_on(cluster: Cluster) -> None:
    words = ("python", "-m", "loadgen", "sweep", *CLUSTER, "engine=simulated", RUNS, "run=cut-driver", *SWEEP)
    job = cluster.begin(*SUBMIT, *ON_LOAD, "--", *words)
    folders = {name: cluster.host(name).disk / "runs" / "cut-driver" for name in ("load1", "load2")}
    until(lambda: any(folder.exists() for folder in folders.values()), "no run folder", START_S)
    name, folder = next(item for item in folders.items() if item[1].exists())
    await_window(folder, 1)
    cluster.host(name).cut()
    time.sleep(20)
    cluster.host(name).plug()
    said, _ = job.communicate(timeout=START_S)
    cluster.await_ray_again(name)
    running = ("pgrep", "-f", "loadgen sweep")
    until(lambda: cluster.run(*running, on=name).returncode, "the driver hangs", START_S)
    again = cluster.run("python", "-m", "loadgen", "resume", "/tmp/runs/cut-driver", on=name)
    ended = Ended(said + again.stdout, again.returncode, copied(cluster, folder))
    assert ended.code in GOES_ON and ended.is_whole(), ended.said
    assert set(ended.reasons) <= {*BUSY, "load_host_lost", "node_lost", "replica_lost", "actor_lost"}, (
        ended.said
    )
