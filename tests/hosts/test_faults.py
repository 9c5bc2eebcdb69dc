"""Cables that are cut or bad, clocks that step, disks that fill: the cause is named and the sweep goes on."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from analysis import load_run
from analysis.results import summary
from analysis.rows import metrics
from analysis.stats.quantiles import quantile
from tests.hosts.conftest import Cluster
from tests.hosts.faults import LOAD, LOAD1, LOAD2, NODE, NODE1, NODE2, Fault, bad_paths, check, cut, strikes
from tests.hosts.runs import SWEEP, Ended, measure

pytestmark = [pytest.mark.hosts, pytest.mark.ray, pytest.mark.slow]

ON_PATH_S = 7.0
"""Longer than the rest of a window."""
FULL_S = 12.0
"""Longer than a load actor waits for a disk."""
STEP_S = 1000.0
"""Far more than any answer takes."""


def delayed_with_stepped_clocks(cluster: Cluster) -> None:
    """The wall clocks of a load host and a node step while requests are under way."""
    for name in ("load1", "node1"):
        cluster.host(name).step_clock(STEP_S)
    bad_paths(0.04, 0.0, 0.01, ON_PATH_S)(cluster)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """The disk of a folder has no byte left."""
    fill = folder / "fill"
    try:
        with suppress(OSError), fill.open("wb") as file:
            while True:
                file.write(bytes(2**20))
        yield
    finally:
        fill.unlink()


def full_disk_below_a_load_actor(cluster: Cluster) -> None:
    runs = ("pgrep", "-f", "RayLoadActor")
    name = next(name for name in ("load2", "load1") if not cluster.run(*runs, on=name).returncode)
    full_disks(name)(cluster)


def full_disks(*names: str) -> Callable[[Cluster], None]:
    """The disks of hosts are full for longer than a load actor waits."""

    def strike(cluster: Cluster) -> None:
        with ExitStack() as disks:
            for name in names:
                disks.enter_context(full(cluster.host(name).disk))
            time.sleep(FULL_S)

    return strike


def path_p90_ms(ended: Ended, index: int) -> float:
    """p90 of the time outside the engine, of the answers in a window."""
    rows = load_run(ended.folder).requests()
    path = metrics.path(metrics.chosen(rows, metrics.numbers(rows, "window_index") == index))
    return float(quantile(path[np.isfinite(path)], 0.9) or 0.0)


def lost_s(ended: Ended, address: str) -> float:
    """Seconds for which a host could not be reached, by the run's table of hosts."""
    return sum(host["lost_s"] for host in ended.manifest["hosts"] if host["address"] == address)


FAULTS = (
    Fault(cut(10, "load2"), (LOAD,), (LOAD2,)),
    Fault(cut(10, "node2"), (NODE,), (NODE2,), ("replica_lost",)),
    Fault(cut(10, "head"), (), (NODE1, NODE2, LOAD1, LOAD2), (NODE, LOAD, "replica_lost", "actor_lost")),
    Fault(cut(30, "load2", "node2"), (LOAD,), (LOAD2, NODE2), (NODE, "replica_lost", "actor_lost")),
    Fault(delayed_with_stepped_clocks),
    Fault(bad_paths(0.25, 0.2, 0.02, 60.0)),
    Fault(full_disk_below_a_load_actor, ("actor_lost",)),
    Fault(full_disks("load1", "load2"), ("actor_lost",)),
)
DELAYED, JITTERED = 4, 5


def test_faults_in_turn_are_named_and_the_sweep_goes_on(cluster: Cluster) -> None:
    """Hosts have no name for each other, two networks, and monotonic clocks that began at different times.

    At last shared memory is full: what the driver cannot fetch is said with its host.
    """
    windows: list[int] = []
    with ExitStack() as memory:

        def fill_memory_and_stop() -> None:
            for name in ("load1", "load2"):
                memory.enter_context(full(cluster.host(name).path("/dev/shm")))
            cluster.run("pkill", "-INT", "-f", "run=faults")

        then = strikes(cluster, FAULTS, windows, fill_memory_and_stop)
        ended = measure(cluster, "faults", "sweep", [*SWEEP, "search.budget_s=600"], then)
    check(ended, FAULTS, windows)
    assert ended.code == summary.EXIT_INTERRUPTED, ended.said
    check_path(ended, windows)
    check_hosts_and_clocks(ended)
    full_disk = r"replaced .*load actor \d+ on load[12] \([0-9.]+\) \(OSError.*No space left on device"
    assert len(re.findall(full_disk, ended.said)) >= 2, ended.said
    not_fetched = [event["text"] for event in ended.events if event["event"] == "left"]
    assert not_fetched and all("are on load" in text for text in not_fetched), (not_fetched, ended.said)


def check_path(ended: Ended, windows: Sequence[int]) -> None:
    """What a bad path delays counts as the path's, and for no cause of the engine is a window void then."""
    bad = range(windows[JITTERED] + 1, windows[JITTERED + 1] - 1)
    assert path_p90_ms(ended, windows[DELAYED]) > 40 and len(bad) >= 3
    assert all(path_p90_ms(ended, index) > 300 for index in bad), "told as the path's"
    assert not any(window["valid"] for window in ended.windows(bad)), "path_slow, or busy"


def check_hosts_and_clocks(ended: Ended) -> None:
    assert ended.tree["recoveries"] and lost_s(ended, "10.88.0.22") > 20 and lost_s(ended, "10.88.0.12") > 15
    actors = ended.manifest["load_actors"]
    assert {actor["host"] for actor in actors} == {"load1", "load2"}
    assert all(abs(actor["offset_us"]) > 1e6 * 10_000 for actor in actors), "the clocks do differ"
    clock_ms = {host.get("name"): host.get("clock_offset_ms") for host in ended.manifest["hosts"]}
    assert 2000 < clock_ms["load2"] < 4000, "a wall clock that is 3 s ahead"
    rows = load_run(ended.folder).requests().sort_by("due_ns")
    due, ttft_ms = rows["scheduled_at"].to_pylist(), metrics.ttft(rows)
    assert due == sorted(due), "moves no date"
    answered_ms = ttft_ms[np.isfinite(ttft_ms)]
    assert answered_ms.min() > 0 and answered_ms.max() < 1e3 * STEP_S / 2, "nor a time to the first token"
