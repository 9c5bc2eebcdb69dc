"""Processes of this machine by id and start time, read from /proc."""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

Process = tuple[int, int]
"""Id and start time (clock ticks since boot): the kernel reuses ids, but not both."""
ENDED = ("Z", "X")
"""States of a process of which only the id is left."""


def process_of(pid: int) -> Process:
    """The process with this id; its start time is 0 if the process has ended."""
    fields = _stat(pid)
    return pid, int(fields[19]) if fields and fields[0] not in ENDED else 0


def running(processes: Iterable[Process]) -> set[Process]:
    """The processes that have not ended."""
    return {process for process in processes if process[1] and process_of(process[0]) == process}


def with_descendants(pids: Iterable[int]) -> set[Process]:
    """The running processes with these ids and all that they started, to any depth."""
    parents = {int(entry.name): _stat(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")}
    family = set(pids)
    while more := {pid for pid, fields in parents.items() if fields and int(fields[1]) in family} - family:
        family |= more
    return running(map(process_of, family))


def kill_processes_of(folder: Path) -> None:
    """Kill the processes of the Ray session in `folder` that are left: the last resort, normally none.

    They have the folder in their command line and inherited RAY_TMPDIR=folder. The command line alone would
    also match an editor or a shell in which a person looks at a file of the session.
    """
    ours = b"RAY_TMPDIR=" + os.fsencode(folder)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has just ended, or belongs to another user
            if (
                int(process.name) != os.getpid()
                and os.fsencode(folder) in (process / "cmdline").read_bytes()
                and ours in (process / "environ").read_bytes().split(b"\0")
            ):
                os.kill(int(process.name), signal.SIGKILL)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state (field 3 of proc(5)) on; empty if there is no process."""
    try:
        # The name before them, in parentheses, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
