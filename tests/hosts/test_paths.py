"""A path that delays and loses packets, by the kernel's netem: what it costs is told as the path's."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from analysis.results import summary
from tests.hosts.conftest import LOADS, Cluster
from tests.hosts.network import in_net
from tests.hosts.runs import PROBE, measure
from tests.support.machine.patience import BUSY

pytestmark = [pytest.mark.hosts, pytest.mark.ray, pytest.mark.slow]


@contextmanager
def path(cluster: Cluster, *netem: str) -> Iterator[None]:
    """Both load hosts send over a path with these words of netem."""
    pids = [cluster.host(name).pid for name in LOADS.values()]
    disc = ("dev", "eth0", "root")
    try:
        for pid in pids:
            in_net(pid, "tc", "qdisc", "add", *disc, "netem", *netem)
    except subprocess.CalledProcessError:
        pytest.skip("this kernel: no netem (CONFIG_NET_SCH_NETEM)")
    try:
        yield
    finally:
        for pid in pids:
            in_net(pid, "tc", "qdisc", "del", *disc)


@pytest.mark.parametrize(
    ("netem", "reasons"),
    [
        (("delay", "40ms", "loss", "1%"), {*BUSY}),
        (("delay", "200ms", "200ms", "loss", "2%"), {"path_slow"}),
    ],
)
def test_a_bad_path_is_told_as_a_path(cluster: Cluster, netem: tuple[str, ...], reasons: set[str]) -> None:
    with path(cluster, *netem):
        ended = measure(cluster, "-".join(netem[1::2]), "probe", [*PROBE, "rate_qps=2", "duration_s=30"])
    assert ended.is_whole() and ended.code in (summary.EXIT_OK, summary.EXIT_VOID), ended.said
    assert set(ended.reasons) <= reasons, ended.said
    checks = {check["name"]: check["value"] for check in ended.tree["checks"]}
    assert checks["path_p90"] > 40
