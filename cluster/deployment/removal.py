"""Removes an application and waits until nothing of it is left: no replica, no actor, no process here.

Processes on other machines are known by their actors only; whether an accelerator's memory is free again is
for the preflight to say.
"""

import time
from collections.abc import Collection, Iterable

import ray
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from cluster.deployment.serve_state import DeployError, ServeReplica, state
from cluster.ray_session.own_machine import LOOPBACK, Process, running, with_descendants
from cluster.ray_session.session import last_line, serve_actor_lives
from conf.ray_patches import begin_deletion

POLL_S = 0.1


def remove(app_name: str, timeout_s: float) -> None:
    """Delete an application and wait until nothing is left of it. Raises DeployError."""
    deadline_s = time.monotonic() + timeout_s
    now = state(app_name)
    replicas = (*now.engines, *now.others)
    processes = with_descendants(_here(replicas))
    try:
        begin_deletion(app_name)
    except (RayError, RayServeException) as error:
        raise DeployError(f"cannot delete {app_name}: {last_line(error)}") from error
    while left := _left(app_name, replicas, processes):
        if time.monotonic() > deadline_s:
            raise DeployError(f"{left} {timeout_s:.0f} s after the deletion of {app_name}")
        time.sleep(POLL_S)


def _left(app_name: str, replicas: Iterable[ServeReplica], processes: Collection[Process]) -> str | None:
    """The first thing that is left of the application, or None."""
    status = state(app_name).status
    if status != "ABSENT":
        return f"{app_name} is {status}"
    if actors := [replica.actor for replica in replicas if serve_actor_lives(replica.actor)]:
        return f"{len(actors)} replica actors still live ({', '.join(sorted(actors))})"
    if left := sorted(pid for pid, _ in running(processes)):
        return f"{len(left)} processes still run (pids {', '.join(map(str, left))})"
    return None


def _here(replicas: Iterable[ServeReplica]) -> set[int]:
    """Ids of the replicas' processes on this machine."""
    ours = (LOOPBACK, ray.util.get_node_ip_address())
    return {replica.pid for replica in replicas if replica.pid and replica.host in ours}
