"""A Ray session with Serve started in it: on this machine, or joined by address. Runs tasks on chosen nodes.

A session of our own (`local`, `fake`) lives in one private folder, listens on the loopback address only, and
leaves nothing behind when it ends. If this process is killed, Ray ends the processes of the session, but the
folder maxqps-* stays, with a token that is worth nothing any more.
"""

import io
import logging
import math
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from ray.cluster_utils import Cluster as RayCluster
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.ray_session.host_watch import WatchedHost
from cluster.ray_session.own_machine import (
    FRONT_S,
    LOAD_ROLE,
    LOOPBACK,
    NO_DEVICES,
    HeldPorts,
    SessionError,
    front_streams,
    hidden_gpus,
    joining_environment,
    kill_processes_of,
    new_folder,
    own_environment,
    require_nodes,
    shortage,
)
from conf import ray_patches
from conf.io.one_line import last_line
from conf.specs.experiment import Cluster, Routing
from conf.specs.layout import REPLICA_CPUS

OBJECT_STORE_BYTES = 100 * 2**20
KEEP_ALIVE_S = 600
"""Longer than Serve's 5 s, after which a replica may close a connection just as HAProxy sends on it."""
CLUSTER_HTTP_PORT = 8000
HEAD_TIMEOUT_S = 5.0
STDERR = 2
HTTP2_SETTINGS = b"\4"
"""Kind of the first frame that either side of an HTTP/2 connection sends, of which gRPC is one."""
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + HTTP2_SETTINGS + bytes(5)
SERVE_CONTROLLER = ("SERVE_CONTROLLER_ACTOR", "serve")
HEAD_RESOURCE = "node:__internal_head__"

STARTS = 3
"""Tries to start Ray and Serve (our choice): on a busy machine a node may miss Ray's own 30 s, or the front
`FRONT_S`."""
LATE = "timed out during startup"
"""Ray's message for a node that missed its 30 s."""
WITHOUT_HELPERS = {"include_log_monitor": False, "no_monitor": True}
"""Settings of a head node that serves one driver, which reads no logs of remote workers and adds no nodes:
each of the two processes would take half a CPU second to start."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Session:
    """A running Ray session. `url` is Serve's HTTP front on the head node, empty without Serve.

    `load_selector` are the node labels that a load actor needs: role=load if any alive node has that label.
    If the selector is empty, load actors run on any node, beside replicas if need be. `front_streams` is the
    number of requests that the front serves at once, while others wait in its queue; None if it has no bound.
    """

    url: str
    load_selector: dict[str, str] = field(default_factory=dict)
    front_streams: int | None = None


@contextmanager
def open_session(
    cluster: Cluster,
    routing: Routing | None,
    load_cpus: float = 1.0,
    environment: Mapping[str, str] = MappingProxyType({}),
    real_gpus: bool = False,
) -> Iterator[Session]:
    """Start or join a session, start Serve in it for `routing`, and at the end stop what was started.

    Without `routing` there is no Serve, only Ray. `load_cpus` are kept for load actors in a session of our
    own. All processes that we start get `environment` too. A session of our own only pretends to have GPUs:
    with `real_gpus` its processes use those of this machine that the caller's variables leave visible. The
    caller's handlers of SIGINT and SIGTERM are back in force before Serve starts.
    Raises SessionError, or PlacementError if the nodes are too few or too small.
    """
    with as_session_error("use the installed Ray", "the versions on all nodes must be equal"):
        ray_patches.require_ray_version()
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    with ExitStack() as stack:
        if cluster.session == "address":
            _join(cluster.address, joining_environment(routing) | dict(environment), routing, stack)
        else:
            stack.enter_context(in_environment(environment))
            _start(cluster, routing, load_cpus, real_gpus, stack)
        haproxy = routing is not None and routing.data_path != "python_proxy"
        if routing is not None:
            stack.enter_context(ray_patches.haproxy_mode(haproxy))
        with as_session_error("list the nodes of the Ray session", "start it again"):
            nodes = [node for node in ray.nodes() if node["Alive"]]
        url = "" if routing is None else _start_serve(cluster, nodes, stack)
        kept = any(node["Labels"].get("role") == LOAD_ROLE for node in nodes)
        # Serve's Python proxy has no bound.
        yield Session(url, {"role": LOAD_ROLE} if kept else {}, front_streams() if haproxy else None)


@contextmanager
def as_session_error(what: str, remedy: str) -> Iterator[None]:
    """Turn an error of Ray's into one line: the failed action `what`, the reason, and the remedy."""
    try:
        yield
    except Exception as error:  # Ray raises plain Exception if a node does not start in time
        raise SessionError(f"cannot {what}: {last_line(error)}; {remedy}") from error


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restore the signal handlers that Ray replaces when it starts (in the main thread only, as Ray does)."""
    ours = threading.current_thread() is threading.main_thread()
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)} if ours else {}
    try:
        yield
    finally:
        for kind, handler in before.items():
            if handler is not None:  # None was not set from Python and cannot be
                signal.signal(kind, handler)


def _start_serve(cluster: Cluster, nodes: list[dict[str, Any]], stack: ExitStack) -> str:
    """Start Serve with one HTTP front, on the head node, and return its URL."""
    # As long to import as all else together; the load of an external endpoint needs none of it.
    from ray import serve
    from ray.serve.config import HTTPOptions, ProxyLocation

    require_nodes(cluster, [node["Resources"].get("GPU", 0.0) for node in nodes])
    head = next(node["NodeManagerAddress"] for node in nodes if HEAD_RESOURCE in node["Resources"])
    ports = stack.enter_context(HeldPorts())
    stack.callback(_stop, serve.shutdown, ray.shutdown)
    # Replicas bind to the same host as the front, each on its own node.
    host = LOOPBACK if head == LOOPBACK else "0.0.0.0"
    for tries_left in reversed(range(STARTS)):
        port = CLUSTER_HTTP_PORT if cluster.session == "address" else ports.another()
        options = HTTPOptions(host=host, port=port, keep_alive_timeout_s=KEEP_ALIVE_S)
        with as_session_error("start Ray Serve", f"check that port {port} of {head} is free, and try again"):
            try:
                with ray_patches.front_start_timeout(FRONT_S):
                    serve.start(ProxyLocation.HeadOnly, options)
                break
            except TimeoutError:
                if not tries_left:
                    raise
                log.warning("the front of Ray Serve was not up within %d s; Serve is started again", FRONT_S)
                _stop(serve.shutdown)
    return f"http://{head}:{port}"


@contextmanager
def in_environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables, unset those whose value is None, and restore them at the end."""
    before = {name: os.environ.get(name) for name in values}
    _set_environment(values)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _start(
    cluster: Cluster, routing: Routing | None, load_cpus: float, real_gpus: bool, stack: ExitStack
) -> None:
    """Start a session of our own: a head and, in a `fake` one, a Ray node per node of `cluster`."""
    if reason := shortage() or (hidden_gpus(cluster.gpus_per_node) if real_gpus else None):
        raise SessionError(reason)
    folder = new_folder()
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    stack.callback(kill_processes_of, folder)
    ports = stack.enter_context(HeldPorts())
    stack.enter_context(in_environment(own_environment(folder, routing, ports)))
    if not real_gpus:
        stack.enter_context(in_environment(NO_DEVICES))
    stack.enter_context(ray_patches.loopback_cluster())
    remedy = "free memory and disk or stop other Ray sessions here, and try again"
    with as_session_error("start Ray on this machine", remedy), _handlers_kept():
        stack.enter_context(_started_nodes(cluster, load_cpus, folder, ports))


def _started_nodes(cluster: Cluster, load_cpus: float, folder: Path, ports: HeldPorts) -> ExitStack:
    """Start the nodes and connect to them; the stack ends both. What `folder` holds of a late try is killed.

    Raises what Ray raises.
    """
    for tries_left in reversed(range(STARTS)):
        ray_patches.forget_session_settings()
        with ExitStack() as begun:
            own = RayCluster(initialize_head=False)
            begun.callback(own.shutdown)
            try:
                add_nodes(own, cluster, load_cpus, ports)
            except Exception as error:  # Ray raises no other kind
                if LATE not in str(error) or not tries_left:
                    raise
                log.warning("Ray was not up within its 30 s; it is started again")
                kill_processes_of(folder)
                continue
            begun.callback(ray.shutdown)
            ray.init(address=own.address, log_to_driver=False, logging_level=logging.WARNING)
            return begun.pop_all()
    raise AssertionError("the last try returns or raises")


def add_nodes(own: RayCluster, cluster: Cluster, load_cpus: float, ports: HeldPorts) -> None:
    """Start the Ray nodes of `cluster` on this machine, the head first."""
    load, replicas = math.ceil(load_cpus), math.ceil(cluster.gpus_per_node * REPLICA_CPUS)
    nodes = [(load + replicas, cluster.gpus_per_node, "gpu")]
    if cluster.session != "local":
        nodes = [(load, 0, LOAD_ROLE), *[(replicas, cluster.gpus_per_node, "gpu")] * cluster.nodes]
    for number, (cpus, gpus, role) in enumerate(nodes):
        own.add_node(
            wait=False,
            node_ip_address=LOOPBACK,
            num_cpus=cpus,
            num_gpus=gpus,
            labels={"role": role},
            include_dashboard=False,
            dashboard_agent_listen_port=ports.another(),
            object_store_memory=OBJECT_STORE_BYTES,
            **({} if number else WITHOUT_HELPERS),
        )
    if cluster.session != "local":
        own.wait_for_nodes()


def _join(address: str, environment: dict[str, str], routing: Routing | None, stack: ExitStack) -> None:
    """Join the cluster at `address`; Serve gets our settings there through the job's environment."""
    runtime_env = {"env_vars": environment}
    remedy = "check cluster.address, and `ray status` there"
    with as_session_error(f"join the Ray cluster at {address}", remedy):
        ray_patches.forget_session_settings()
        _try_head(address)
        with _handlers_kept():
            ray.init(
                address=address, runtime_env=runtime_env, log_to_driver=False, logging_level=logging.WARNING
            )
        stack.callback(ray.shutdown)
        taken = routing is not None and serve_runs()
    if taken:
        raise SessionError(
            f"Ray Serve already runs in the cluster at {address} with settings of its own; "
            "stop it there with `serve shutdown`"
        )


def _try_head(address: str) -> None:
    """Raise OSError, or an error of Ray's, if no Ray head answers at `address` or it refuses our token.

    Ray itself would try for a minute or more, and write about each try on stderr.
    """
    if "://" in address:
        return
    head = ray_patches.head_address(address) or ""
    host, _, port = head.rpartition(":")
    if not host:
        return
    with socket.create_connection((host.strip("[]"), int(port)), HEAD_TIMEOUT_S) as connection:
        if not os.environ.get("RAY_USE_TLS"):
            connection.sendall(HTTP2_HELLO)
            if connection.recv(len(HTTP2_HELLO), socket.MSG_PEEK)[3:4] != HTTP2_SETTINGS:
                raise ConnectionError(f"the server at {head} is no Ray head")
    with _native_stderr_dropped():
        ray_patches.try_token(head)


@contextmanager
def _native_stderr_dropped() -> Iterator[None]:
    """Drop the lines that native code writes on stderr; a failure is an exception as well."""
    sys.stderr.flush()
    before, nowhere = os.dup(STDERR), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDERR)
    try:
        yield
    finally:
        os.dup2(before, STDERR)
        os.close(before)
        os.close(nowhere)


def watched_hosts(serving: Collection[str]) -> list[WatchedHost]:
    """The hosts of the session that this process has joined; those at the addresses `serving` serve.

    Raises SessionError if the head does not say in time.
    """
    with as_session_error("list the nodes of the Ray session", "start it again"):
        nodes = {node["NodeManagerAddress"]: node for node in ray_patches.alive_nodes()}
    return [
        WatchedHost(node["NodeManagerHostname"], address, node["NodeManagerPort"], address in serving)
        for address, node in nodes.items()
    ]


def serve_runs() -> bool:
    """True if Serve runs in the session that this process has joined."""
    return serve_actor_lives(SERVE_CONTROLLER[0])


def serve_actor_lives(name: str) -> bool:
    """True if Serve has an actor of this name in the session that this process has joined."""
    try:
        ray.get_actor(name, SERVE_CONTROLLER[1])
    except ValueError:
        return False
    return True


def _stop(*parts: Callable[[], None]) -> None:
    """Shut parts of Ray down without its usual line that the controller's last task died."""
    try:
        with redirect_stdout(io.StringIO()):
            for shut_down in parts:
                shut_down()
    except RayError as error:
        log.warning("Serve did not shut down: %s", error)


def on_node(node: str, task: Any, gpus: float = 0) -> Any:
    """`task` bound to one node; it takes no CPUs, so that it also runs where there are none."""
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    options = {"num_cpus": 0, "num_gpus": gpus, "max_retries": 0, "scheduling_strategy": strategy}
    return ray.remote(task).options(**options)


def gather(
    tasks: Mapping[str, Any], timeout_s: float, force: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """Results of the tasks that ended within `timeout_s`, and the reasons of the others, by key.

    Late tasks are cancelled, with `force` by ending their processes.
    """
    ready, late = ray.wait(list(tasks.values()), num_returns=len(tasks), timeout=timeout_s)
    for task in late:
        ray.cancel(task, force=force)
    results: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for key, task in tasks.items():
        if task not in ready:
            reasons[key] = f"no answer in {timeout_s:g} s"
            continue
        try:
            results[key] = ray.get(task)
        except RayError as error:
            reasons[key] = last_line(error)
    return results, reasons
