"""A job submitted from outside, whose driver is on a load host: the rows of all load hosts come there."""

import pytest

from tests.hosts.conftest import CLUSTER, RUNS, Cluster
from tests.hosts.network import ROOT
from tests.hosts.runs import PROBE, Ended, copied

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
