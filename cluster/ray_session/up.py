"""A Ray cluster on this machine that outlives the command that started it.

It is a session of our own (`session`) that stays: loopback only, a token of its own, all files in one private
folder. A state file notes each process's id and start time, so that `stop` ends exactly those. There is one
such cluster at a time, and one command at a time that starts or ends it.
"""

import errno
import fcntl
import json
import os
import shlex
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray._private.ray_constants import ENABLE_RAY_CLUSTERS_ENV_VAR, PROCESS_TYPE_RAYLET
from ray.cluster_utils import Cluster as RayCluster
from ray.serve.schema import ApplicationStatusOverview

from cluster.ray_session import serve_settings, session
from cluster.ray_session.held_ports import LOOPBACK, HeldPorts
from cluster.ray_session.placement import SessionError
from cluster.ray_session.private_folder import new_folder
from cluster.ray_session.processes import Process, left_after, process_of, running, send, with_descendants
from conf.io import durable
from conf.specs.experiment import Cluster, Routing

RAYLET_STOP_S = 15.0
"""Seconds for a raylet to end its workers, which takes one or two; later it is killed."""
SERVICE_STOP_S = 3.0
"""Seconds for the other processes, which save nothing; the dashboard's agents may ignore SIGTERM."""
DRIVER_CPUS = 1.0
"""CPUs of the driver of a submitted job, beside the load actors."""

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of a file system without locks, where two commands may run at once."""


@dataclass(frozen=True, slots=True)
class StandingCluster:
    """A cluster that was started here: its addresses and its processes; holds no secret."""

    folder: str
    address: str
    dashboard_url: str
    cluster: dict[str, Any]
    routing: dict[str, Any]
    load_cpus: float
    raylets: tuple[Process, ...]
    services: tuple[Process, ...]

    @property
    def processes(self) -> tuple[Process, ...]:
        """The processes that it started with: a raylet for each node, and the services of the head."""
        return self.raylets + self.services

    @property
    def alive(self) -> set[Process]:
        """Its processes that still run; all of them in a healthy cluster."""
        return running(self.processes)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a process that joins: the token by its path (mode 0600), never the token itself."""
        return {
            "RAY_ADDRESS": self.address,
            "RAY_API_SERVER_ADDRESS": self.dashboard_url,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": f"{self.folder}/token",
            # Otherwise Ray takes 127.0.0.1 for an outside address of this machine.
            ENABLE_RAY_CLUSTERS_ENV_VAR: "0",
        }

    @property
    def environment_file(self) -> Path:
        """The file with these variables as shell commands."""
        return Path(self.folder) / "environment"


def state_file() -> Path:
    """The state file of the local cluster, in XDG_STATE_HOME, by default ~/.local/state."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "maxqps" / "cluster.json"


def standing() -> StandingCluster | None:
    """The cluster that was started and not stopped here, or None. Raises SessionError for a broken file."""
    path = state_file()
    try:
        tree = json.loads(path.read_text())
        raylets, services = (
            tuple((int(pid), int(ticks)) for pid, ticks in tree.pop(kind)) for kind in ("raylets", "services")
        )
        return StandingCluster(**tree, raylets=raylets, services=services)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SessionError(f"cannot read {path}: {session.last_line(error)}; delete it") from error


def start(cluster: Cluster, routing: Routing, load_cpus: float) -> StandingCluster:
    """Start the nodes of `cluster` on this machine, and leave them running.

    A second call for the same cluster finds it running. Raises SessionError if another cluster is up, or one
    is being started or ended, or Ray does not start; then nothing of it is left.
    """
    with _alone():
        return _found_or_started(cluster, routing, load_cpus)


def _found_or_started(cluster: Cluster, routing: Routing, load_cpus: float) -> StandingCluster:
    wanted = asdict(cluster), asdict(routing), load_cpus
    found = standing()
    if found and found.alive:
        if (found.cluster, found.routing, found.load_cpus) == wanted:
            return found
        raise SessionError(
            f"{found.cluster['name']} is up at {found.address} with other settings; "
            "stop it first: python -m cluster down"
        )
    if found:
        _end(found)
    with ExitStack() as undo:
        made = _start(cluster, routing, load_cpus, undo)
        with session.as_session_error(f"write {state_file()}", "check the space and rights of its folder"):
            durable.write_text(state_file(), json.dumps(asdict(made), indent=1))
        undo.pop_all()
    return made


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other commands from starting or ending clusters. Raises SessionError if one is doing so."""
    path = state_file().with_suffix(".lock")
    with ExitStack() as held:
        with session.as_session_error(f"write {path}", "check the rights of its folder"):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = held.enter_context(path.open("a"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SessionError(
                "another `python -m cluster up` or `down` is at work here; try again when it has ended"
            ) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise SessionError(f"cannot lock {path}: {session.last_line(error)}") from error
        yield


def _start(cluster: Cluster, routing: Routing, load_cpus: float, undo: ExitStack) -> StandingCluster:
    folder = new_folder()
    undo.callback(shutil.rmtree, folder, ignore_errors=True)
    remedy = "free memory and disk or stop other Ray sessions here, and try again"
    with (
        HeldPorts() as ports,
        session.in_environment(serve_settings.own_environment(folder, routing, ports)),
        session.in_environment(serve_settings.NO_DEVICES),
        session.loopback_only(),
        session.as_session_error("start Ray on this machine", remedy),
    ):
        session.forget_settings()
        own = RayCluster(initialize_head=False, shutdown_at_exit=False)
        undo.callback(own.shutdown)
        dashboard = {
            "include_dashboard": True,
            "dashboard_host": LOOPBACK,
            "dashboard_port": ports.another(),
        }
        session.add_nodes(own, cluster, load_cpus + DRIVER_CPUS, ports, **dashboard)
        own.wait_for_nodes()
        started = [each for node in own.list_all_nodes() for each in node.live_processes()]
    made = StandingCluster(
        folder=str(folder),
        address=own.address,
        dashboard_url=f"http://{own.webui_url}",
        cluster=asdict(cluster),
        routing=asdict(routing),
        load_cpus=load_cpus,
        raylets=tuple(process_of(of.pid) for kind, of in started if kind == PROCESS_TYPE_RAYLET),
        services=tuple(process_of(of.pid) for kind, of in started if kind != PROCESS_TYPE_RAYLET),
    )
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in made.environment.items()]
    made.environment_file.write_text("".join(lines))
    return made


def stop() -> tuple[StandingCluster | None, list[str]]:
    """End the cluster that was started here; returns it, if there was one, and lines on what is left of it.

    Raises SessionError for a broken state file, and while the cluster is being started or ended.
    """
    with _alone():
        found = standing()
        return found, _end(found) if found else []


def _end(standing: StandingCluster) -> list[str]:
    """End a cluster's processes, remove its folder and its state file; returns lines on what is left.

    Its processes are those that it started with and all that they started.
    """
    alive = standing.alive
    ours = with_descendants(pid for pid, _ in alive)
    # A raylet says goodbye to the GCS; when both are told to end at once, it waits in vain.
    raylets = alive & set(standing.raylets)
    send(raylets, signal.SIGTERM)
    left_after(raylets, RAYLET_STOP_S)
    left = running(ours)
    send(left, signal.SIGTERM)
    left = left_after(left, SERVICE_STOP_S)
    send(left, signal.SIGKILL)
    lines = [f"process {pid} does not end" for pid, _ in sorted(left_after(left, SERVICE_STOP_S))]
    shutil.rmtree(standing.folder, ignore_errors=True)
    if Path(standing.folder).exists():
        lines.append(f"folder {standing.folder} cannot be removed")
    if not lines:
        state_file().unlink(missing_ok=True)
    return lines


def survey() -> dict[str, Any]:
    """Nodes and Serve applications of the session that this process has joined, as plain data."""
    nodes = [
        {
            "address": node["NodeManagerAddress"],
            "role": node["Labels"].get("role", ""),
            "alive": node["Alive"],
            "head": session.HEAD_RESOURCE in node["Resources"],
            "resources": {
                name: node["Resources"][name] for name in sorted(node["Resources"]) if _shown(name)
            },
        }
        for node in ray.nodes()
    ]
    applications = {
        name: {"status": application.status.value, "replicas": _replicas(application)}
        for name, application in sorted(serve.status().applications.items())
    }
    nodes.sort(key=lambda node: (not node["head"], node["role"], node["address"]))
    return {"nodes": nodes, "applications": applications}


def _shown(resource: str) -> bool:
    """False for a resource that Ray gives every node by itself."""
    return not resource.startswith("node:") and resource not in ("memory", "object_store_memory")


def _replicas(application: ApplicationStatusOverview) -> dict[str, int]:
    """Replicas of all deployments of an application by state."""
    counted: Counter[str] = Counter()
    for deployment in application.deployments.values():
        counted.update({str(state): count for state, count in deployment.replica_states.items()})
    return dict(counted)
