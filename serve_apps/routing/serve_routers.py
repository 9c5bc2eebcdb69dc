"""The request router of each policy of Ray Serve's. Requests that HAProxy balances by itself, or that the
load generator sends straight to a replica, have none."""

import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, RunningReplica
from ray.serve.schema import LoggingConfig
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, Router

from conf.ray_patches import LOOPBACK as LOOPBACK
from conf.ray_patches import chosen_replica, init_handle, replica_ports_on_loopback, with_ingress_router
from conf.specs.experiment import Routing
from serve_apps.routing.policies import NO_QUEUE_LIMIT, bound, router_options

SESSION_HEADER = "x-session-id"
"""Serve's own default name, which its proxies read; RAY_SERVE_SESSION_ID_HEADER_KEY would change it."""
CONCURRENT_REQUESTS = 1000


def engine_options(
    name: str, replicas: int, bundle: Mapping[str, float], routing: Routing | None
) -> dict[str, Any]:
    """Serve's options of a deployment of engines, each on a `bundle` of one node, and their router."""
    router = router_options(routing) if routing else None
    return {
        "name": name,
        "num_replicas": replicas,
        "max_ongoing_requests": NO_QUEUE_LIMIT,
        "max_queued_requests": -1,
        # Ray tells a replica its devices by these, and not by a bundle.
        "ray_actor_options": {"num_cpus": bundle.get("CPU", 0.0), "num_gpus": bundle.get("GPU", 0.0)},
        "placement_group_bundles": [dict(bundle)],
        "placement_group_strategy": "STRICT_PACK",
        **({"request_router_config": router} if router else {}),
    }


def behind_router(app: Application, routing: Routing, router: type | None = None) -> Application:
    """`app`, and behind HAProxy with it the deployment that HAProxy asks for the replica of each request.

    The ingress of `app` must have the router of `engine_options`. Serve starts one replica of that deployment
    for each proxy, on its node. Its class is `router`, an ingress class, or our own. Returns `app` itself if
    HAProxy needs no router.
    """
    if routing.data_path != "haproxy" or router_options(routing) is None:
        return app
    ingress = router or serve.ingress()(IngressRouter)
    options = {
        "name": ingress.__name__,
        "max_ongoing_requests": CONCURRENT_REQUESTS,
        "ray_actor_options": {"num_cpus": 0},
        "logging_config": LoggingConfig(enable_access_log=False, log_level="WARNING"),
    }
    return with_ingress_router(app, serve.deployment(**options)(ingress).bind(app))


def first_with_room(
    ranked: Sequence[ReplicaID], in_flight: Mapping[ReplicaID, int], load_factor: float
) -> int:
    """The position in `ranked`, all replicas from the owner on, of the first that is not full."""
    total = sum(in_flight.get(replica, 0) for replica in ranked)
    most = bound(total, len(ranked), load_factor)
    return next(i for i, replica in enumerate(ranked) if in_flight.get(replica, 0) < most)


class BoundedHashRouter(ConsistentHashRouter):  # type: ignore[misc]
    """Serve's hash ring, but a full replica is passed over for the next one on the ring.

    It counts the requests in flight that it has sent itself: each proxy has a router of its own.
    `load_factor` comes with the ring's settings.
    """

    def initialize_state(self, *, load_factor: float, **ring: Any) -> None:
        super().initialize_state(**ring)
        self._load_factor = load_factor
        self._in_flight: Counter[ReplicaID] = Counter()

    def on_send_request(self, replica_id: ReplicaID) -> None:
        super().on_send_request(replica_id)
        self._in_flight[replica_id] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        super().on_request_completed(replica_id, internal_request_id)
        self._in_flight[replica_id] -= 1
        if self._in_flight[replica_id] <= 0:
            del self._in_flight[replica_id]

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        ranks: list[list[RunningReplica]]
        ranks = await super().choose_replicas(candidate_replicas, pending_request)
        if len(ranks) < 2:
            return ranks
        ranked = [rank[0].replica_id for rank in ranks]
        at = first_with_room(ranked, self._in_flight, self._load_factor)
        return ranks[at:] + ranks[:at]


class IngressRouter:
    """Tells HAProxy which replica a request goes to, as the engines' own request router chooses it.

    HAProxy asks by POST /internal/route with the request's session header and takes `replica_id` from the
    answer; everything else goes straight between it and the replica. ray.serve.llm has the same (`LLMRouter`)
    for its own servers.
    """

    def __init__(self, engines: DeploymentHandle) -> None:
        stay_on_loopback()
        init_handle(engines)
        self._engines = engines

    async def __serve_build_asgi_app__(self) -> Router:
        return route_app(self._engines)


def route_app(engines: DeploymentHandle) -> Router:
    """The application of `IngressRouter`."""

    async def answer(request: Request) -> JSONResponse:
        session = request.headers.get(SESSION_HEADER)
        handle = engines if session is None else engines.options(session_id=session)
        try:
            replica = await chosen_replica(handle)
        except (RuntimeError, DeploymentUnavailableError) as error:  # HAProxy answers 503 to its client
            return JSONResponse({"detail": str(error)}, HTTPStatus.SERVICE_UNAVAILABLE)
        return JSONResponse({"replica_id": replica})

    return Router([Route("/internal/route", answer, methods=["POST"])])


def stay_on_loopback() -> None:
    """Bind the replica's own gRPC port to the loopback address if the Ray node has that address."""
    if ray.util.get_node_ip_address() == LOOPBACK:
        replica_ports_on_loopback()


def reserved_port() -> socket.socket:
    """A socket that holds a free port of the loopback address, for a server that sets SO_REUSEADDR.

    Until it is closed no other process is given the port; a server may listen on it, for this one does not.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((LOOPBACK, 0))
    return holder
