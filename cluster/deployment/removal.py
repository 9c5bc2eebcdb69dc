"""Takes an application down and waits until nothing of it is left: no replica, no actor, no process here.

Knows Serve's names of actors and /proc of this machine. Processes on other machines are known by their
actors only; whether an accelerator's memory is free again is for the preflight to say.
"""

import time
from collections.abc import Iterable
from pathlib import Path

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from cluster.deployment.serve_state import DeployError, ServeReplica, state
from cluster.ray_session.session import LOOPBACK, SERVE_CONTROLLER, last_line

POLL_S = 0.1
DEAD = ("Z", "X")
"""States of a process of which only the number is left."""

Processes = dict[int, str]
"""Processes by number, each with the instant of its start: a number is used again."""


def remove(app_name: str, timeout_s: float) -> None:
    """Delete an application and wait until nothing of it is left. Raises DeployError."""
    deadline_s = time.monotonic() + timeout_s
    now = state(app_name)
    replicas = (*now.engines, *now.others)
    processes = _with_children(_here(replicas))
    try:
        serve.delete(app_name, _blocking=False)
    except (RayError, RayServeException) as error:
        raise DeployError(f"cannot delete {app_name}: {last_line(error)}") from error
    while left := _left(app_name, replicas, processes):
        if time.monotonic() > deadline_s:
            raise DeployError(f"{left} {timeout_s:.0f} s after the deletion of {app_name}")
        time.sleep(POLL_S)


def _left(app_name: str, replicas: Iterable[ServeReplica], processes: Processes) -> str | None:
    """What is still there, or None."""
    status = state(app_name).status
    if status != "ABSENT":
        return f"{app_name} is {status}"
    if actors := [replica.actor for replica in replicas if _lives(replica.actor)]:
        return f"{len(actors)} replica actors still live ({', '.join(sorted(actors))})"
    if running := [pid for pid, since in processes.items() if _started(pid) == since]:
        return f"{len(running)} processes still run (pids {', '.join(map(str, sorted(running)))})"
    return None


def _lives(actor: str) -> bool:
    try:
        ray.get_actor(actor, SERVE_CONTROLLER[1])
    except ValueError:
        return False
    return True


def _here(replicas: Iterable[ServeReplica]) -> set[int]:
    """Numbers of the replicas' processes on this machine."""
    ours = (LOOPBACK, ray.util.get_node_ip_address())
    return {replica.pid for replica in replicas if replica.pid and replica.host in ours}


def _with_children(pids: set[int]) -> Processes:
    """Processes with all that they started: an engine may have processes of its own."""
    parents = {int(entry.name): _stat(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")}
    found = set(pids)
    while more := {pid for pid, words in parents.items() if words and int(words[1]) in found} - found:
        found |= more
    return {pid: since for pid in found if (since := _started(pid))}


def _started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None if it has ended."""
    words = _stat(pid)
    return None if not words or words[0] in DEAD else words[19]


def _stat(pid: int) -> list[str]:
    """The words of /proc/PID/stat after the command's name, which may hold blanks; none of no process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
