"""Settings of Ray Serve and of our own sessions: variables, ports, limits of this process."""

import os
import resource
from pathlib import Path

from cluster.ray_session.own_machine import HeldPorts
from conf.specs.experiment import Routing

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
