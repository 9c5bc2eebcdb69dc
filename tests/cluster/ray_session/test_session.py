"""`cluster.ray_session.session`: a session that is started here or joined, where that does not go well."""

import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import ray
from ray import serve
from ray._private import accelerators
from ray.exceptions import RaySystemError
from ray.serve.exceptions import RayServeException

from cluster.ray_session import session
from cluster.ray_session.host_watch import WatchedHost
from cluster.ray_session.own_machine import SessionError
from conf import load, ray_patches
from conf.specs.experiment import Cluster, Routing

ASKED = load(["cluster=laptop"])
CLUSTER, ROUTING = ASKED.cluster, ASKED.routing


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("no_session")
def test_a_node_and_a_front_that_are_late_once_are_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither the caller's GPUs nor the length of TMPDIR matters meanwhile."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert len(str(tmp_path)) > 25

    nodes: list[int] = []
    ports: list[int] = []
    add_nodes, start = session.add_nodes, serve.start

    def node_late_once(own: Any, cluster: Any, load_cpus: float, *held: Any, **head: Any) -> None:
        nodes.append(1)
        add_nodes(own, cluster, load_cpus, *held, **head)
        if len(nodes) == 1:
            raise Exception(f"The current node {session.LATE}. This could happen because ...")

    def front_late_once(where: Any, options: Any) -> None:
        ports.append(options.port)
        start(where, options)
        if len(ports) == 1:
            raise TimeoutError("HTTP proxies not available after 60s.")

    monkeypatch.setattr(session, "add_nodes", node_late_once)
    monkeypatch.setattr(serve, "start", front_late_once)
    with session.open_session(CLUSTER, ROUTING) as opened:
        assert len(nodes) == 2 and len([node for node in ray.nodes() if node["Alive"]]) == 1
        assert len(ports) == 2 and opened.url.endswith(f":{ports[-1]}")
        with pytest.raises(urllib.error.HTTPError, match="404"):  # no application is deployed
            urllib.request.urlopen(opened.url, timeout=30)
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    "devices",
    [
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"HIP_VISIBLE_DEVICES": "1,2"},
        {"ROCR_VISIBLE_DEVICES": "0"},
    ],
)
def test_pretended_gpus_do_not_depend_on_the_callers_variables(
    devices: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray starts no node with more GPUs than it reads from them."""

    def read(*_: Any, **__: Any) -> None:
        kinds = (accelerators.NvidiaGPUAcceleratorManager, accelerators.AMDGPUAcceleratorManager)
        raise Exception([kind.get_current_process_visible_accelerator_ids() for kind in kinds])

    for name, value in devices.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(session, "add_nodes", read)
    with pytest.raises(SessionError, match=r"\[None, None\]"), session.open_session(CLUSTER, None):
        pass
    assert devices.items() <= os.environ.items()


@pytest.mark.parametrize("devices", ["0", "", "0,1,2,3,4,5,6"])
def test_too_few_real_gpus_are_refused_with_the_variable(
    devices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    remedy = "CUDA_VISIBLE_DEVICES='.*' leaves fewer GPUs visible than cluster.gpus_per_node=8; unset it"
    with pytest.raises(SessionError, match=remedy):
        session.open_session(CLUSTER, None, real_gpus=True).__enter__()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_is_no_ray_head_is_one_line_before_ray_tries_to_join(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself tries for a minute, and its C++ part writes of each try on stderr."""
    monkeypatch.setattr(session.ray, "init", lambda **_: pytest.fail("Ray tries to join"))
    monkeypatch.setattr(session, "HEAD_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        pool.submit(_answered, server, answer)
        here = Cluster("c", "address", f"127.0.0.1:{server.getsockname()[1]}", nodes=1, gpus_per_node=8)
        with (
            ray_patches.loopback_cluster(),
            pytest.raises(
                SessionError, match="cannot join the Ray cluster at .*(no Ray head|timed out); check"
            ),
        ):
            session.open_session(here, None).__enter__()


def test_a_ray_head_that_refuses_us_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As a cluster of somebody else's that runs on this machine does: its token is not ours."""

    class Refusing(grpc.GenericRpcHandler):
        def service(self, _: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                lambda _, context: context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
            )

    monkeypatch.setattr(session.ray, "init", lambda **_: pytest.fail("Ray tries to join"))
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Refusing()])
    here = Cluster("c", "address", f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", 1, 8)
    server.start()
    try:
        with ray_patches.loopback_cluster(), pytest.raises(SessionError, match="InvalidAuthToken"):
            session.open_session(here, None).__enter__()
    finally:
        server.stop(None)
    assert capfd.readouterr().err == ""


def _answered(server: socket.socket, answer: bytes) -> None:
    """Accept a connection and send `answer` on it; without an answer, stay silent until the client leaves."""
    connection, _ = server.accept()
    with connection:
        connection.sendall(answer)
        while connection.recv(1024):
            pass


@pytest.mark.parametrize(("words", "tries"), [(session.LATE, session.STARTS), ("no space left", 1)])
def test_what_stays_wrong_is_one_line(words: str, tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def broken(*_: Any, **__: Any) -> None:
        tried.append(1)
        raise Exception(words)

    monkeypatch.setattr(session, "add_nodes", broken)
    with (
        pytest.raises(SessionError, match=f"cannot start Ray on this machine: {words}; free memory"),
        session.open_session(CLUSTER, None),
    ):
        pass
    assert len(tried) == tries


JOINED = Cluster("joined", session="address", address="10.0.0.1:6379", gpus_per_node=8)
HEAD = {
    "Alive": True,
    "NodeManagerAddress": "10.0.0.1",
    "Resources": {"GPU": 8.0, "node:__internal_head__": 1.0},
    "Labels": {},
}


def fails(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def does_nothing(*_: object, **__: object) -> None:
    """In place of what would reach a cluster."""


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A cluster to join that is not there; one module's calls into Ray and Serve are stand-ins."""
    for name in ("init", "shutdown"):
        monkeypatch.setattr(ray, name, does_nothing)
    monkeypatch.setattr(session, "_try_head", does_nothing)
    monkeypatch.setattr(ray, "nodes", lambda: [HEAD])
    monkeypatch.setattr(ray, "get_actor", fails(ValueError("no such actor")))
    for name in ("start", "shutdown"):
        monkeypatch.setattr(serve, name, does_nothing)
    return monkeypatch


KINDS = (TimeoutError, OSError, RaySystemError, RayServeException, Exception)
FAILURES = [RuntimeError("a\n  the reason\n"), *(kind("the reason") for kind in KINDS)]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["init", "nodes", "get_actor", "start", "own"])
def test_a_session_that_does_not_start_is_one_line(
    joined: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    cluster, home = JOINED, ray
    if where == "start":
        home = serve
    if where == "own":
        cluster, home, where = CLUSTER, session, "RayCluster"
    joined.setattr(home, where, fails(error))
    before = dict(os.environ)
    with pytest.raises(SessionError, match=r"^cannot .*: .*the reason.*; .*$") as caught:
        session.open_session(cluster, Routing("leastconn")).__enter__()
    assert "\n" not in str(caught.value)
    assert os.environ == before


def test_an_error_of_the_run_is_not_the_sessions(joined: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="of the run"), session.open_session(JOINED, Routing("leastconn")):
        raise RuntimeError("of the run")


def test_the_callers_signal_handlers_hold_while_serve_starts(joined: pytest.MonkeyPatch) -> None:
    kinds = signal.SIGINT, signal.SIGTERM
    before = [signal.getsignal(kind) for kind in kinds]
    while_serve_starts: list[Any] = []

    def init(**_: object) -> None:
        for kind in kinds:
            signal.signal(kind, does_nothing)

    def start(*_: object) -> None:
        while_serve_starts.extend(signal.getsignal(kind) for kind in kinds)

    joined.setattr(ray, "init", init)
    joined.setattr(serve, "start", start)
    try:
        with session.open_session(JOINED, Routing("leastconn")):
            assert [signal.getsignal(kind) for kind in kinds] == before
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
    assert while_serve_starts == before


@pytest.mark.parametrize("labels", [{}, {"role": "load"}])
def test_load_actors_keep_to_nodes_with_their_role_if_there_are_any(
    joined: pytest.MonkeyPatch, labels: dict[str, str]
) -> None:
    dead = HEAD | {"Alive": False, "Labels": {"role": "load"}}
    joined.setattr(ray, "nodes", lambda: [HEAD, HEAD | {"Labels": labels}, dead])
    with session.open_session(JOINED, None) as opened:
        assert opened.load_selector == labels


def test_hosts_are_watched_at_the_port_of_their_node_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"NodeManagerAddress": "a", "NodeManagerHostname": "one", "NodeManagerPort": 6380}
    monkeypatch.setattr(ray_patches, "alive_nodes", lambda: [node, node, node | {"NodeManagerAddress": "b"}])
    expected = [WatchedHost("one", "a", 6380, True), WatchedHost("one", "b", 6380)]
    assert session.watched_hosts({"a"}) == expected
