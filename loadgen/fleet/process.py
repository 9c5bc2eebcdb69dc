"""What the operating system tells of a load actor: the limits, the clock and the driver of its process."""

import asyncio
import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loadgen.fleet.target import FleetError

SPARE_FILES = 64
"""Files for what a process opens beside its streams: shard, logs, look-ups, sockets of Ray."""
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
OPEN_FILES = Path("/proc/self/fd")
NO_LIMIT = 2**31
BOOT, NAMESPACES = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns")
ROUND_TRIPS = 20
MAX_DOUBT_NS = 50_000_000
"""Largest doubt about a clock's offset with which a common start is made (our choice)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Files that this process may open and has open, and ports of one source address for each target.

    All processes of a machine share its ports. An unknown limit is `NO_LIMIT`.
    """

    soft_files: int
    hard_files: int
    open_files: int
    ports: int

    def shortage(self, endpoints: int, wanted: int, sharing: int = 1) -> str | None:
        """The limit too small for `wanted` streams of one of `sharing` actors, with the remedy; or None."""
        by_files = max(0, self.soft_files - self.open_files - SPARE_FILES)
        most = min(by_files, self.ports * endpoints // sharing)
        if wanted <= most:
            return None
        short = f"a load actor can hold {most} of {wanted} streams open"
        if most == by_files:
            return (
                f"{short}: raise `ulimit -n` (hard limit {self.hard_files}) where load actors are started, "
                "or use more fleet.actors"
            )
        ours = f", shared by {sharing} load actors" if sharing > 1 else ""
        return (
            f"{short}: {self.ports} ports for each of {endpoints} URL(s){ours}; widen "
            "net.ipv4.ip_local_port_range, or use more target.urls or fleet.actors on other nodes"
        )


def limits() -> Limits:
    """The limits of this process now."""
    soft, hard = (
        NO_LIMIT if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    open_files, ports = 0, NO_LIMIT
    with suppress(OSError):
        open_files = sum(1 for _ in OPEN_FILES.iterdir()) - 1  # without the one that lists them
    with suppress(OSError, ValueError):
        first, last = map(int, PORT_RANGE.read_text().split())
        ports = max(0, last - first + 1)
    return Limits(soft, hard, open_files, ports)


def raise_files() -> None:
    """Lift the soft limit of open files to the hard one, which needs no privilege."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # the kernel allows less than the limit says; `shortage` reports it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _kernel(namespace: str) -> tuple[str, str]:
    """The boot of this machine and this process's namespace; empty where the kernel reports neither."""
    with suppress(OSError):
        return BOOT.read_text().strip(), str((NAMESPACES / namespace).readlink())
    return "", ""


@dataclass(frozen=True, slots=True)
class WatchedProcess:
    """A process id with the boot of a machine and the namespace in which it means that process."""

    pid: int
    where: tuple[str, str]

    @classmethod
    def own(cls) -> "WatchedProcess":
        """This process."""
        return cls(os.getpid(), _kernel("pid"))

    def watch(self, ended: Callable[[], None]) -> bool:
        """Call `ended` in the running loop as soon as the process is gone; False if nothing shows that here.

        Ray ends the actors of a dead driver too, but seconds later where its own processes died with it. On
        another machine, or where the kernel has no pidfd, there is only Ray.
        """
        if self.where != _kernel("pid") or not all(self.where):
            return False
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            ended()
            return True
        except OSError:
            return False
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            ended()

        loop.add_reader(descriptor, gone)
        return True


def wall_less_monotonic_ns() -> int:
    """This process's wall clock less its monotonic one."""
    return time.time_ns() - time.monotonic_ns()


def whose_clock() -> str:
    """Name of this process's monotonic clock, equal for all of one boot; "" is unknown."""
    return " ".join(_kernel("time")).strip()


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """An actor's monotonic clock minus the driver's, known to within `doubt_ns`; one clock has no doubt."""

    offset_ns: int
    doubt_ns: int

    @classmethod
    def measured(cls, read_clock: Callable[[], tuple[int, str]]) -> "ClockOffset":
        """Compare a clock with this process's monotonic one; `read_clock` returns its time and its name.

        Of twenty round trips the shortest counts; no wall clock has a say. Raises FleetError.
        """
        trips = []
        for _ in range(ROUND_TRIPS):
            before = time.monotonic_ns()
            there_ns, whose = read_clock()
            after = time.monotonic_ns()
            # Half of an odd number of nanoseconds more: a true zero must not lie just outside.
            trips.append(cls(there_ns - (before + after) // 2, (after - before) // 2 + 1))
        best = min(trips, key=lambda trip: trip.doubt_ns)
        if whose and whose == whose_clock() and abs(best.offset_ns) <= best.doubt_ns:
            return cls(0, 0)
        if best.doubt_ns > MAX_DOUBT_NS:
            raise FleetError(
                f"the clock of a load actor is known to within {best.doubt_ns / 1e6:.0f} ms only; "
                "run the driver nearer to the load actors, or on a less busy node"
            )
        return best
