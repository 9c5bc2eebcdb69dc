"""Cables that are cut or bad, hosts that die and disks that fill, in the middle of sweeps: the cause is named
and the sweep goes on.

One sweep takes several faults in turn, each in a window of its own, for its start takes longer than a fault.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from analysis import load_run
from analysis.results import summary
from analysis.rows import metrics
from analysis.stats.quantiles import quantile
from tests.hosts.conftest import Cluster
from tests.hosts.runs import GOES_ON, SWEEP, Ended, measure
from tests.support.machine.patience import BUSY

pytestmark = [pytest.mark.hosts, pytest.mark.ray, pytest.mark.slow]

ANSWERED_S = 3.0
"""Time after which the answers to a window's last requests have come, and each host has been asked again."""
ON_PATH_S = 7.0
"""The rest of a window."""
FULL_S = 12.0
"""Longer than a load actor waits for a disk."""
NODE, LOAD = "node_lost", "load_host_lost"


@dataclass(frozen=True)
class Fault:
    """`strike` begins when a window is loaded, and returns when it is over.

    Windows are void for all of `reasons`, and for none but these and `also`; they name `hosts`.
    """

    strike: Callable[[Cluster], None]
    reasons: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


def cut(seconds: float, *names: str) -> Callable[[Cluster], None]:
    """Cut hosts from everything, the first for so long and each other for half of it."""

    def strike(cluster: Cluster) -> None:
        hosts = [cluster.host(name) for name in names]
        for host in hosts:
            host.cut()
        time.sleep(seconds / 2)
        for host in hosts[1:]:
            host.plug()
        time.sleep(seconds / 2)
        hosts[0].plug()

    return strike


def bad_paths(delay_s: float, jitter_s: float, loss: float) -> Callable[[Cluster], None]:
    """Both load hosts send by a bad cable."""

    def strike(cluster: Cluster) -> None:
        with ExitStack() as paths:
            for name in ("load1", "load2"):
                paths.enter_context(cluster.host(name).bad_path(delay_s, jitter_s, loss))
            time.sleep(ON_PATH_S)

    return strike


def strikes(
    cluster: Cluster, faults: Sequence[Fault], windows: list[int], at_last: Callable[[], object]
) -> Callable[[Callable[[], int]], None]:
    """Strikes in turn; `windows` gets the window of each fault and the one after the last."""

    def then(await_window: Callable[[], int]) -> None:
        await_window()
        for fault in faults:
            windows.append(await_window())
            time.sleep(ANSWERED_S)
            fault.strike(cluster)
        windows.append(await_window())
        time.sleep(ANSWERED_S)
        at_last()

    return then


def check(ended: Ended, faults: Sequence[Fault], windows: Sequence[int]) -> None:
    """Each fault has the windows until the next, whose outage may have begun in the last of them.

    A busy machine may make windows void, for its own reasons and no other.
    """
    assert ended.is_whole(), ended.tree["requests"]
    nothing = Fault(lambda _: None)
    for number, (fault, following) in enumerate(zip(faults, [*faults[1:], nothing], strict=True)):
        indices = range(windows[number], windows[number + 1])
        reasons = {window["void_reason"] for window in ended.windows(indices) if not window["valid"]}
        hosts = set().union(*(ended.lost_hosts(index) for index in indices))
        allowed = {*BUSY, *fault.reasons, *fault.also, *following.reasons, *following.also}
        where = (number, list(indices), reasons, hosts, ended.said)
        assert set(fault.reasons) <= reasons <= allowed, where
        assert set(fault.hosts) <= hosts <= {*fault.hosts, *following.hosts}, where


def path_p90_ms(ended: Ended, index: int) -> float:
    """p90 of the time outside the engine, of the answers in a window."""
    rows = load_run(ended.folder).requests()
    path = metrics.path(metrics.chosen(rows, metrics.numbers(rows, "window_index") == index))
    return float(quantile(path[np.isfinite(path)], 0.9) or 0.0)


def lost_s(ended: Ended, address: str) -> float:
    """Seconds for which a host could not be reached, by the run's table of hosts."""
    return sum(host["lost_s"] for host in ended.manifest["hosts"] if host["address"] == address)


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


NODE1, NODE2 = "node1 (10.88.0.11)", "node2 (10.88.0.12)"
LOAD1, LOAD2 = "load1 (10.88.0.21)", "load2 (10.88.0.22)"
CABLES = (
    Fault(cut(10, "load2"), (LOAD,), (LOAD2,)),
    Fault(cut(15, "node2"), (NODE,), (NODE2,), ("replica_lost",)),
    Fault(bad_paths(0.04, 0.0, 0.01)),
    Fault(bad_paths(0.25, 0.2, 0.02)),
    Fault(cut(30, "load2", "node2"), (LOAD,), (LOAD2, NODE2), (NODE, "replica_lost")),
    Fault(cut(10, "head"), (), (NODE1, NODE2, LOAD1, LOAD2), (NODE, LOAD, "replica_lost", "actor_lost")),
)
DELAYED, JITTERED = 2, 3


def test_bad_and_cut_cables_are_named_and_the_sweep_goes_on(cluster: Cluster) -> None:
    """Hosts have no name for each other, two networks, and monotonic clocks that began at different times."""
    windows: list[int] = []
    stop = partial(cluster.run, "pkill", "-INT", "-f", "run=cables")
    then = strikes(cluster, CABLES, windows, stop)
    ended = measure(cluster, "cables", "sweep", [*SWEEP, "search.budget_s=600"], then)
    check(ended, CABLES, windows)
    assert ended.code == summary.EXIT_INTERRUPTED, ended.said
    assert path_p90_ms(ended, windows[DELAYED]) > 40 and path_p90_ms(ended, windows[JITTERED]) > 300
    assert not any(window["valid"] for window in ended.windows([windows[JITTERED]])), "path_slow, or busy"
    assert ended.tree["recoveries"] and lost_s(ended, "10.88.0.22") > 20 and lost_s(ended, "10.88.0.12") > 15
    actors = ended.manifest["load_actors"]
    assert {actor["host"] for actor in actors} == {"load1", "load2"}
    assert all(abs(actor["offset_us"]) > 1e6 * 10_000 for actor in actors), "the clocks do differ"
    clock_ms = {host.get("name"): host.get("clock_offset_ms") for host in ended.manifest["hosts"]}
    assert abs(clock_ms["load1"]) < 1000 and 2000 < clock_ms["load2"] < 4000, "a wall clock that is 3 s ahead"
    due = load_run(ended.folder).requests().sort_by("due_ns")["scheduled_at"].to_pylist()
    assert due == sorted(due), "moves no date"


def test_a_host_that_dies_is_replaced_by_another(cluster: Cluster) -> None:
    def dies(cluster: Cluster) -> None:
        cluster.host("load1").power_off()
        cluster.host("node2").power_off()
        cluster.start("gpu", {13: "node3"})

    faults = (
        Fault(cut(60, "load2"), (LOAD,), (LOAD2,), ("actor_lost",)),
        Fault(dies, (), (LOAD1, NODE2), (LOAD, NODE, "replica_lost", "actor_lost")),
    )
    windows: list[int] = []
    then = strikes(cluster, faults, windows, lambda: None)
    ended = measure(cluster, "deaths", "sweep", [*SWEEP, "search.budget_s=66"], then)
    check(ended, faults, windows)
    assert ended.code in GOES_ON and "actor_lost" not in ended.stops, ended.said
    addresses = {facts["host"] for facts in ended.manifest["server"]["replicas"].values()}
    assert addresses == {"10.88.0.11", "10.88.0.13"}, "the manifest says where the replicas are now"
    assert {actor["host"] for actor in ended.manifest["load_actors"][-2:]} == {"load2"}, ended.said
    cluster.start("load", {21: "load1"})


def test_full_disks_and_full_shared_memory_are_told_with_the_name_of_the_host(cluster: Cluster) -> None:
    def fill_disk(cluster: Cluster) -> None:
        with full(cluster.host("load2").disk):
            time.sleep(FULL_S)

    faults = (Fault(fill_disk, also=("actor_lost",)),)
    windows: list[int] = []
    with ExitStack() as memory:

        def fill_memory() -> None:
            for name in ("load1", "load2"):
                memory.enter_context(full(cluster.host(name).path("/dev/shm")))

        then = strikes(cluster, faults, windows, fill_memory)
        ended = measure(cluster, "full", "sweep", [*SWEEP, "search.budget_s=55"], then)
    check(ended, faults, windows)
    assert ended.code in GOES_ON, ended.said
    assert re.search(r"load2 \(10\.88\.0\.22\) \(.*No space left on device", ended.said), ended.said
    not_fetched = [event["text"] for event in ended.events if event["event"] == "left"]
    assert all("are on load" in text for text in not_fetched), not_fetched
