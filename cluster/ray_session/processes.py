"""Processes of this machine by id and start time, read from /proc."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

Process = tuple[int, int]
"""Id and start time (clock ticks since boot): together they name a process for good; ids are used again."""
ENDED = ("Z", "X")
"""States of a process of which only the id is left."""
POLL_S = 0.1


def process_of(pid: int) -> Process:
    """The process with this id; its start time is 0 if there is none."""
    fields = _stat(pid)
    return pid, int(fields[19]) if fields and fields[0] not in ENDED else 0


def running(processes: Iterable[Process]) -> set[Process]:
    """The processes that have not ended."""
    return {process for process in processes if process[1] and process_of(process[0]) == process}


def with_descendants(pids: Iterable[int]) -> set[Process]:
    """The running processes with these ids and all that they started, to any depth."""
    parents = {int(entry.name): _stat(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")}
    found = set(pids)
    while more := {pid for pid, fields in parents.items() if fields and int(fields[1]) in found} - found:
        found |= more
    return running(map(process_of, found))


def send(processes: Iterable[Process], kind: signal.Signals) -> None:
    """Send a signal to processes; those that have ended are passed over."""
    for pid, _ in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, kind)


def left_after(processes: Iterable[Process], most_s: float) -> set[Process]:
    """Wait until all processes have ended or `most_s` is over; returns those that still run."""
    end_s = time.monotonic() + most_s
    while (left := running(processes)) and time.monotonic() <= end_s:
        time.sleep(POLL_S)
    return left


def kill_processes_of(folder: Path) -> None:
    """Kill the processes with `folder` in their command line: the last resort, normally none."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is not ours
            if int(entry.name) != os.getpid() and os.fsencode(folder) in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state (field 3 of proc(5)) on; empty if there is no process."""
    try:
        # The name before them, in parentheses, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
