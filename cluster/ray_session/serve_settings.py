"""Settings of Ray Serve and of a session of our own, as environment variables and ports; starts nothing."""

import secrets
import socket
from contextlib import closing, suppress
from pathlib import Path

from cluster.ray_session import process_limits
from conf.specs.experiment import Routing

LOOPBACK = "127.0.0.1"
HAPROXY_THREADS = 2
HAPROXY_POLICIES = ("leastconn", "roundrobin")
NO_LOG = "/nonexistent/haproxy-log"
"""HAProxy's log target: no file. For Ray's default, syslog on 127.0.0.1:514, each thread opens a UDP socket
on all interfaces."""
PORTS, PORT_KINDS = range(20_000, 30_000), 16
"""Ports of a session of our own: above Ray's workers, below Serve's replicas and the kernel's own choice."""
PORT_NAMES = (
    "AUTOSCALER_METRIC_PORT",
    "DASHBOARD_METRIC_PORT",
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
    "RAY_SERVE_HAPROXY_STATS_PORT",
    "RAY_SERVE_HAPROXY_METRICS_PORT",
)
FRONT_PORT, FIRST_AGENT_PORT = len(PORT_NAMES), len(PORT_NAMES) + 1


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
        # A front that starts is killed after this time, 5 s by default: on a busy machine it takes longer.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    }
    if haproxy:
        # Where a router of Serve's or the client chooses, HAProxy balances only what is not a request.
        policy = routing.policy if routing.policy in HAPROXY_POLICIES else "roundrobin"
        environment["RAY_SERVE_HAPROXY_BALANCE_ALGORITHM"] = policy
        environment["RAY_SERVE_HAPROXY_NBTHREAD"] = str(HAPROXY_THREADS)
        environment["RAY_SERVE_HAPROXY_MAXCONN"] = str(process_limits.MOST_STREAMS)
        environment["RAY_SERVE_HAPROXY_LOG_TARGET"] = NO_LOG
    return environment


def joining_environment(routing: Routing | None) -> dict[str, str]:
    """The environment of Serve in a running cluster: HAProxy gets as many files as a process may open here.

    HAProxy does not start if it asks for more than its node allows; the driver runs beside it, on the head.
    """
    environment = serve_environment(routing)
    if "RAY_SERVE_HAPROXY_MAXCONN" in environment:
        environment["RAY_SERVE_HAPROXY_MAXCONN"] = str(process_limits.front_streams())
    return environment


def own_environment(folder: Path, routing: Routing | None) -> dict[str, str]:
    """The environment of a session of our own: its files in `folder`, every port its own."""
    ports = {name: str(free_port(kind)) for kind, name in enumerate(PORT_NAMES)}
    return joining_environment(routing) | {
        **ports,
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(folder / "haproxy"),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
    }


def free_port(kind: int = -1) -> int:
    """A free port of the loopback address, which the kernel gives to no connection.

    The port is not bound yet; ports of different kinds are never the same.
    """
    while True:
        port = secrets.choice(PORTS[kind % PORT_KINDS :: PORT_KINDS])
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
