"""Tells a process at once that another one on the same machine has died.

Ray ends the actors of a driver that died, but where its own processes die with the driver it takes seconds
to notice. On another machine, or where the kernel has no pidfd, there is only Ray.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
NAMESPACE = Path("/proc/self/ns/pid")


@dataclass(frozen=True, slots=True)
class WatchedProcess:
    """A process id with the boot of a machine and the namespace in which it means that process."""

    pid: int
    where: tuple[str, str]


def own() -> WatchedProcess:
    """This process."""
    return WatchedProcess(os.getpid(), _where())


def watch(other: WatchedProcess, ended: Callable[[], None]) -> bool:
    """Call `ended` in the running loop as soon as `other` is gone; False if that cannot be seen from here."""
    if other.where != _where() or not all(other.where):
        return False
    try:
        descriptor = os.pidfd_open(other.pid)
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


def _where() -> tuple[str, str]:
    with suppress(OSError):
        return BOOT.read_text().strip(), str(NAMESPACE.readlink())
    return "", ""
