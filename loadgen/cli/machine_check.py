"""What this machine can take, asked before anything starts: a run folder, and so many load actors.

Knows disks and cores; knows no engine.
"""

import os
import tempfile
from pathlib import Path

from conf import ConfigError, Experiment

ACTORS_PER_CORE = 16
"""More would only take each other's time: one alone sends hundreds of requests a second (our choice)."""


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
    """Why no folder can be made inside a folder that may be still to come; empty if one can.

    One is made and removed again where the first existing folder of the path is: access rights alone do not
    know of read-only and full disks.
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
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def crowded(actors: int, cores: int) -> str:
    """Why so many load actors would only take each other's time; empty if they would not."""
    most = ACTORS_PER_CORE * cores
    if actors <= most:
        return ""
    return (
        f"fleet.actors={actors} would share the {cores} cores of this machine; lower it to at most {most}, "
        "for one sends hundreds of requests a second"
    )


def shared(actors: int, cores: int) -> str:
    """What a plan says of load actors that share cores; empty where each has one."""
    return f", sharing the {cores} cores of this machine" if actors > cores else ""
