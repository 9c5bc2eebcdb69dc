"""Watches whether the hosts of a joined cluster can be reached from the driver's, one connection a second.

A host answers if the port of Ray's node manager takes a TCP connection. Its kernel does that, so that a busy
host answers too.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from conf.host_outage import HostOutage

PERIOD_S = 1.0
TIMEOUT_S = 3.5
"""Linux sends the first packet of a connection again after 1 and 3 s: a path that loses all three is cut."""
LATER_S = 2 * TIMEOUT_S
"""Time within which a host that is back has surely been asked again."""

Reach = Callable[["WatchedHost"], None]
"""Connects to a host. Raises OSError."""


@dataclass(frozen=True, slots=True)
class WatchedHost:
    """A host of the cluster; `serves` if it has replicas or the front."""

    name: str
    address: str
    port: int
    serves: bool = False


@dataclass(slots=True)
class HostLog:
    """The outages of one host, from each try to reach it.

    Before its first answer it has none: a port that is closed to the driver's host says nothing.
    """

    host: WatchedHost
    answered_ns: int | None = None
    outages: list[HostOutage] = field(default_factory=list)

    def note(self, began_ns: int, reason: str = "") -> None:
        """The host took a connection that was begun at this time, or took none for a reason."""
        if not reason:
            if self.is_out:
                self.outages[-1] = replace(self.outages[-1], until_ns=began_ns)
            self.answered_ns = began_ns
        elif self.answered_ns is not None and not self.is_out:
            host = self.host
            self.outages.append(HostOutage(host.name, host.address, host.serves, reason, self.answered_ns))

    @property
    def is_out(self) -> bool:
        return bool(self.outages) and self.outages[-1].until_ns is None


def connect(host: WatchedHost) -> None:
    """Connect to a host and leave. Raises OSError."""
    socket.create_connection((host.address, host.port), TIMEOUT_S).close()


class HostWatch:
    """Watches hosts in a thread for each, since one that is silent must not delay the others.

    Whoever sends load from a host that is silent waits for it for `patience_s`.
    """

    def __init__(self, reach: Reach = connect, patience_s: float = 0.0) -> None:
        self._reach, self.patience_s = reach, patience_s
        self._logs: dict[str, HostLog] = {}
        self._past: list[HostOutage] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def follow(self, hosts: Iterable[WatchedHost]) -> None:
        """Watch these hosts from now on; what was seen of others stays, and a silent one of them ends now.

        A host that serves no longer, or serves now, is another one: its silence had another meaning.
        """
        wanted, now_ns = {host.address: host for host in hosts}, time.monotonic_ns()
        with self._lock:
            others = [log for log in self._logs.values() if wanted.get(log.host.address) != log.host]
            for log in others:
                log.note(now_ns)
                self._past += log.outages
                del self._logs[log.host.address]
            new = [host for address, host in wanted.items() if address not in self._logs]
            self._logs |= {host.address: HostLog(host) for host in new}
        for host in new:
            threading.Thread(target=self._watch, args=(self._logs[host.address],), daemon=True).start()

    def outages(self) -> list[HostOutage]:
        """All outages so far."""
        with self._lock:
            return [*self._past, *(outage for log in self._logs.values() for outage in log.outages)]

    def settle(self) -> None:
        """Wait until every host answers, for at most `LATER_S`: one that is back was asked again by then."""
        deadline_s = time.monotonic() + LATER_S
        while any(outage.until_ns is None for outage in self.outages()) and time.monotonic() < deadline_s:
            self._ended.wait(PERIOD_S / 4)

    def close(self) -> None:
        """Watch no longer."""
        self._ended.set()

    def _watch(self, log: HostLog) -> None:
        while not self._ended.is_set() and self._logs.get(log.host.address) is log:
            began_ns, reason = time.monotonic_ns(), ""
            try:
                self._reach(log.host)
            except OSError as error:
                reason = error.strerror or "no answer"
            with self._lock:
                log.note(began_ns, reason)
            self._ended.wait(PERIOD_S)
