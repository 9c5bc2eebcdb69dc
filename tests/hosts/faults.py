"""Faults that strike hosts in the middle of a sweep, and what its windows must say of each.

One sweep takes several faults in turn, each in a window of its own, for its start takes longer than a fault.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tests.hosts.conftest import Cluster
from tests.hosts.runs import Ended
from tests.support.machine.patience import BUSY

ANSWERED_S = 3.0
"""Time after which the answers to a window's last requests have come, and each host has been asked again."""
NODE, LOAD = "node_lost", "load_host_lost"
NODE1, NODE2 = "node1 (10.88.0.11)", "node2 (10.88.0.12)"
LOAD1, LOAD2 = "load1 (10.88.0.21)", "load2 (10.88.0.22)"


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
    """Cut hosts from everything."""

    def strike(cluster: Cluster) -> None:
        hosts = [cluster.host(name) for name in names]
        for host in hosts:
            host.cut()
        time.sleep(seconds)
        for host in hosts:
            host.plug()

    return strike


def bad_paths(delay_s: float, jitter_s: float, loss: float, seconds: float) -> Callable[[Cluster], None]:
    """Both load hosts send by a bad cable."""

    def strike(cluster: Cluster) -> None:
        with ExitStack() as paths:
            for name in ("load1", "load2"):
                paths.enter_context(cluster.host(name).bad_path(delay_s, jitter_s, loss))
            time.sleep(seconds)

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

    Ray may give up a host some seconds after its network is back. A busy machine may make windows void, for
    its own reasons and no other.
    """
    assert ended.is_whole(), ended.tree["requests"]
    for number, fault in enumerate(faults):
        indices, near = range(windows[number], windows[number + 1]), faults[max(0, number - 1) : number + 2]
        reasons = {window["void_reason"] for window in ended.windows(indices) if not window["valid"]}
        hosts = set().union(*(ended.lost_hosts(index) for index in indices))
        allowed = {*BUSY, *(reason for each in near for reason in (*each.reasons, *each.also))}
        where = (number, list(indices), reasons, hosts, ended.said)
        assert set(fault.reasons) <= reasons <= allowed, where
        assert set(fault.hosts) <= hosts <= {host for each in near for host in each.hosts}, where
