"""Checks of this machine before anything starts: the run folder, and the number of load actors."""

import os
import tempfile
import time
from pathlib import Path

from conf import ConfigError, Experiment

ACTORS_PER_CORE = 16
"""Most load actors per core: one alone sends hundreds of requests a second (our choice)."""


def refuse(experiment: Experiment) -> None:
    """Raise ConfigError for a run folder that exists or cannot be made, and for too many load actors."""
    out, run = Path(experiment.out), experiment.run
    if run and (out / run).exists():
        raise ConfigError(f"run folder {out / run} exists; choose another run=NAME or remove it")
    if why := unwritable(out):
        raise ConfigError(f"out={out}: {why}; choose another folder with out=FOLDER")
    if experiment.cluster.session != "address" and (why := crowded(experiment.fleet.actors, cores())):
        raise ConfigError(why)


def unwritable(folder: Path) -> str:
    """The reason why no folder can be made inside `folder`, which may not exist yet; empty if one can.

    One is made and removed: access rights say nothing of read-only or full disks.
    """
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not there.is_dir():
        return f"{there} is a file"
    try:
        Path(tempfile.mkdtemp(prefix=".maxqps-", dir=there)).rmdir()
    except OSError as error:
        return f"cannot write to {there}: {error.strerror}"
    return ""


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_cores(over_s: float = 1.0) -> float:
    """Cores that nothing used within the next `over_s`; all where the system does not count (no /proc/stat).

    A load average would still hold what ended a minute ago, as an installation.
    """
    try:
        before_s, began_s = _idle_s(), time.monotonic()
        time.sleep(over_s)
        return min(cores(), (_idle_s() - before_s) / (time.monotonic() - began_s))
    except OSError:
        return cores()


def _idle_s() -> float:
    """Seconds that all cores of the machine have been idle or waited for a disk (proc_stat(5))."""
    times = Path("/proc/stat").read_text().split(maxsplit=6)
    return (int(times[4]) + int(times[5])) / os.sysconf("SC_CLK_TCK")


def crowded(actors: int, cores: int) -> str:
    """The reason why so many load actors would only compete for CPU; empty if they would not."""
    most = ACTORS_PER_CORE * cores
    if actors <= most:
        return ""
    return (
        f"fleet.actors={actors} would share the {cores} cores of this machine; lower it to at most {most}, "
        "for one sends hundreds of requests a second"
    )


def shared(actors: int, cores: int) -> str:
    """Words of the plan about load actors that share cores; empty if each has one."""
    return f", sharing the {cores} cores of this machine" if actors > cores else ""
