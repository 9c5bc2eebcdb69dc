"""`serve_apps.routing.serve_routers` as deployed: their rings, and what sessions meet behind a real proxy."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray import serve
from ray.serve._private.common import DeploymentID
from ray.serve.request_router import ReplicaID

from cluster.deployment.service_reports import check_router
from cluster.deployment.warmup import DeployError
from cluster.ray_session.own_machine import serve_environment
from cluster.ray_session.session import Session, open_session
from conf import load
from conf.specs.experiment import Cluster, Routing
from serve_apps.routing.policies import bound, ring, router_options, session_key, starts
from serve_apps.routing.serve_routers import BoundedHashRouter, route_app
from serve_apps.simulated.app import application_name, build_app

SPECS = load(["engine=simulated", "layout=dp2_tp4_ep4", "workload=chat_sessions"])
NODE = Cluster("a fake node", session="fake", nodes=1, gpus_per_node=8)
BODY = {"model": SPECS.model.served_name, "prompt": [0], "max_tokens": 1}
BY_HAPROXY = ("leastconn", "roundrobin", "round_robin", "consistent_hash")
BY_PYTHON = ("round_robin", "pow2", "consistent_hash", "bounded_hash")
DIRECT = ("client_side", "per_node")
ROUTED = [
    *((policy, "haproxy") for policy in BY_HAPROXY),
    *((policy, "python_proxy") for policy in BY_PYTHON),
    *((policy, "direct") for policy in DIRECT),
]
"""Policies, and their data paths; those by text are missing, whose import asks for vLLM."""


# --- the rings ------------------------------------------------------------------------------------------


def replicas_of(count: int) -> list[ReplicaID]:
    return [ReplicaID(f"replica{i}", DeploymentID("engines", "app")) for i in range(count)]


def router_over(replicas: list[ReplicaID], vnodes: int = 100, load_factor: float = 1.25) -> Any:
    """The router that is deployed, over these replicas and with no Serve around it."""
    router: Any = object.__new__(BoundedHashRouter)
    router._deployment_id, router._use_replica_queue_len_cache = "engines", False
    router._ring_hashes, router._ring_replicas = [], []
    routing = Routing("test", "python_proxy", "bounded_hash", vnodes, load_factor)
    config = router_options(routing)
    assert config is not None
    router.initialize_state(**config["request_router_kwargs"])
    router._replicas = {each: SimpleNamespace(replica_id=each) for each in replicas}
    router._rebuild_ring(frozenset(replicas))
    return router


def choice(router: Any, session: str) -> ReplicaID:
    metadata = SimpleNamespace(session_id=session, internal_request_id="")
    pending = SimpleNamespace(metadata=metadata, routing_context=SimpleNamespace(should_backoff=False))
    ranks = asyncio.run(router.choose_replicas(list(router._replicas.values()), pending))
    assert {rank[0].replica_id for rank in ranks} == set(router._replicas)
    result: ReplicaID = ranks[0][0].replica_id
    return result


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 9),
    st.floats(1.0, 3.0),
    st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=120),
)
def test_no_replica_has_more_in_flight_than_the_bound(
    count: int, load_factor: float, events: list[tuple[bool, int]]
) -> None:
    router, open_ = router_over(replicas_of(count), 20, load_factor), []
    for ends, number in events:
        if ends and open_:
            router.on_request_completed(open_.pop(number % len(open_)), "id")
            continue
        most = bound(len(open_), count, load_factor)
        chosen = choice(router, f"session-{number}")
        router.on_send_request(chosen)
        open_.append(chosen)
        assert Counter(open_)[chosen] <= most
        assert Counter(open_) == router._in_flight


def test_a_session_stays_until_its_replica_is_full_and_comes_back() -> None:
    router = router_over(replicas_of(4))
    home = choice(router, "session-1")
    for _ in range(2):
        router.on_send_request(home)
    assert bound(2, 4, 1.25) == 2 and choice(router, "session-1") != home
    router.on_request_completed(home, "id")
    assert choice(router, "session-1") == home


def test_the_ring_of_the_engine_model_is_that_of_the_router() -> None:
    replicas, sessions = replicas_of(5), range(200)
    router = router_over(replicas, 37)
    names = [each.unique_id for each in replicas]
    places, owners = ring(names, 37)
    assert places.tolist() == router._ring_hashes
    assert [names[owner] for owner in owners] == [each.unique_id for each in router._ring_replicas]
    result = owners[starts(places, map(session_key, sessions))]
    assert [names[owner] for owner in result] == [choice(router, f"session-{n}").unique_id for n in sessions]


@pytest.mark.parametrize(("policy", "path"), ROUTED)
def test_serve_learns_of_the_router_of_each_policy_and_haproxy_where_to_ask(policy: Any, path: Any) -> None:
    routing = Routing("test", path, policy)
    config = router_options(routing)
    environment = serve_environment(routing)
    assert (config is None) == (policy in ("leastconn", "roundrobin", "pow2", "client_side", "per_node"))
    assert environment["RAY_SERVE_ENABLE_HA_PROXY"] == ("0" if path == "python_proxy" else "1")
    balance = environment.get("RAY_SERVE_HAPROXY_BALANCE_ALGORITHM")
    own = "leastconn" if policy == "leastconn" else "roundrobin"
    assert balance == (None if path == "python_proxy" else own)
    experiment = load(["layout=dp1_tp8_ep8"]) if policy == "per_node" else SPECS
    app = build_app(replace(experiment, routing=routing))
    asked = app._ingress_request_router is not None
    assert asked == (path == "haproxy" and config is not None)


def test_a_changed_ring_is_another_application() -> None:
    rings = (Routing("test", "haproxy", "consistent_hash", vnodes) for vnodes in (100, 1000))
    first, other = (application_name(replace(SPECS, routing=each)) for each in rings)
    assert first != other


# --- what HAProxy is told -------------------------------------------------------------------------------


class Engines:
    """A handle of Serve's that chooses `replica` and keeps the session it was asked for."""

    def __init__(self, replica: str | None) -> None:
        self.replica = replica
        self.sessions: list[str] = []

    def options(self, session_id: str) -> "Engines":
        self.sessions.append(session_id)
        return self

    @asynccontextmanager
    async def choose_replica(self, **how: bool) -> AsyncIterator[Any]:
        assert how == {"_reserve": False}
        if self.replica is None:
            raise RuntimeError("no replica is left")
        chosen = SimpleNamespace(to_full_id_str=lambda: self.replica)
        yield SimpleNamespace(_replica=SimpleNamespace(replica_id=chosen))


def told(engines: Engines, *headers: tuple[bytes, bytes]) -> tuple[int, dict[str, str]]:
    async def asked() -> Any:
        sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {"type": "http", "method": "POST", "path": "/internal/route", "headers": headers}
        await route_app(engines)(scope, None, sent.put)
        return [sent.get_nowait() for _ in range(sent.qsize())]

    start, body = asyncio.run(asked())
    assert (b"content-length", b"%d" % len(body["body"])) in start["headers"]
    return start["status"], json.loads(body["body"])


def test_haproxy_is_told_the_replica_of_the_requests_session() -> None:
    engines = Engines("app#engines#r1")
    assert told(engines, (b"x-session-id", b"session-7")) == (200, {"replica_id": "app#engines#r1"})
    assert told(engines, (b"host", b"front")) == (200, {"replica_id": "app#engines#r1"})
    assert engines.sessions == ["session-7"]
    assert told(Engines(None)) == (503, {"detail": "no replica is left"})


# --- what sessions meet ---------------------------------------------------------------------------------


def running(session: Session, routing: Routing, name: str, *, asked: Routing | None = None) -> str | None:
    """Deploy two replicas with one routing and let the self-test ask for it, or for another."""
    replicas, app = SPECS.replicas, build_app(replace(SPECS, routing=routing))
    serve.run_many([serve.RunTarget(app, name=name)], wait_for_applications_running=True)
    try:
        wait_for_answers(session.url, replicas)
        patience_s = 120.0 if asked is None else 1.0
        return check_router(session.url, asked or routing, replicas, BODY, patience_s)
    finally:
        serve.delete(name)


def wait_for_answers(url: str, replicas: int) -> None:
    """Until each replica has answered: sessions enough that a ring leaves none out."""
    names: set[str | None] = set()
    for number in range(1000):
        headers = {"x-session-id": f"wait-{number}"}
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(BODY).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                names.add(response.headers["x-replica-id"])
        except urllib.error.HTTPError:
            time.sleep(0.1)
        if len(names) == replicas:
            return
    raise AssertionError(f"only {names} answered")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("no_session")
def test_behind_the_python_proxy_no_old_router_is_taken_for_the_new() -> None:
    sticky, spread = (Routing("test", "python_proxy", policy) for policy in ("bounded_hash", "pow2"))
    with open_session(NODE, sticky, load_cpus=1) as session:
        assert "1.00 replicas per session" in (running(session, sticky, "one") or "")
        try:
            said = running(session, spread, "one", asked=spread)
        except DeployError as error:
            assert "an old router may still be in force" in str(error)
        else:  # the proxy has learned of the new one in time
            assert said is not None and "1.00 replicas per session" not in said
        assert "replicas per session" in (running(session, spread, "two") or "")


@pytest.mark.ray
@pytest.mark.slow
def test_behind_haproxy_a_router_of_serve_keeps_sessions_or_spreads_them(standing: Session) -> None:
    sticky, spread = (Routing("test", "haproxy", policy) for policy in ("consistent_hash", "round_robin"))
    said = running(standing, sticky, "one")
    assert said is not None and "1.00 replicas per session" in said
    # HAProxy's routers end with their application: under the same name there is no old one.
    assert "replicas per session" in (running(standing, spread, "one") or "")
