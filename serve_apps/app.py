"""Builds the Serve application of an engine spec; knows Serve's options and nothing of a running cluster."""

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import partial

import ray
from ray import serve
from ray.serve import Application
from ray.serve._private import replica as serve_replica
from ray.serve.schema import LoggingConfig

from conf.schema import Engine as EngineSpec
from conf.schema import Hardware, Layout, Model, SimulatedEngine
from serve_apps.engine_model.engine import Engine
from serve_apps.openai_api import ServedModel
from serve_apps.simulated import RealtimeEngine, SimulatedApp

NO_QUEUE_LIMIT = 1_000_000
"""Requests wait in the engine, where they are counted, never in front of it (Serve's default is 5)."""
HEALTH_CHECK_PERIOD_S = 2.0
SHUTDOWN_GRACE_S = 5.0
LOOPBACK = "127.0.0.1"


def application_name(*specs: object) -> str:
    """One application name per configuration: a router outlives an application of the same name."""
    return f"sim-{hashlib.sha256(repr(specs).encode()).hexdigest()[:12]}"


def build_app(
    engine: EngineSpec,
    model: Model,
    hardware: Hardware,
    layout: Layout,
    replicas: int,
    bundles: Sequence[dict[str, float]],
    seed: int = 0,
) -> Application:
    """`replicas` independent engines, each on `bundles` of one node (STRICT_PACK).

    Raises ValueError for an engine that is not available or does not fit the hardware.
    """
    if not isinstance(engine, SimulatedEngine):
        raise ValueError(f"engine={engine.kind} is not available in this version; use engine=simulated")
    Engine(engine, model, hardware, layout)  # what cannot run is refused here, not in every replica
    options = {
        "num_replicas": replicas,
        "max_ongoing_requests": NO_QUEUE_LIMIT,
        "max_queued_requests": -1,
        "ray_actor_options": {"num_cpus": bundles[0].get("CPU", 0), "num_gpus": bundles[0].get("GPU", 0)},
        "placement_group_bundles": [dict(bundle) for bundle in bundles],
        "placement_group_strategy": "STRICT_PACK",
        "health_check_period_s": HEALTH_CHECK_PERIOD_S,
        "graceful_shutdown_timeout_s": SHUTDOWN_GRACE_S,
        "logging_config": LoggingConfig(enable_access_log=False, log_level="WARNING"),
    }
    deployment = serve.deployment(**options)(serve.ingress()(SimulatedReplica))
    return deployment.bind(engine, model, hardware, layout, seed)


class SimulatedReplica:
    """One engine behind Serve's HTTP server. Serve calls the two methods and replaces it when unhealthy."""

    def __init__(
        self, engine: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout, seed: int
    ) -> None:
        _stay_on_loopback()
        context = serve.get_replica_context()
        self._replica_id = context.replica_id.unique_id
        replica = Engine(engine, model, hardware, layout, seed + context.rank.rank)
        self._engine = RealtimeEngine(replica, time_scale=engine.time_scale)
        block_size = engine.block_size if engine.enable_prefix_caching else 0
        self._served = ServedModel(
            model.served_name, engine.max_model_len, model.vocab, int(time.time()), block_size
        )

    async def __serve_build_asgi_app__(self) -> SimulatedApp:
        self._engine.start()
        return SimulatedApp(self._engine, self._served, self._replica_id)

    async def check_health(self) -> None:
        if self._engine.failure:
            raise RuntimeError(self._engine.failure)


def _stay_on_loopback() -> None:
    """Where Ray keeps to the loopback address, let the replica's own gRPC port do so too.

    Serve binds it to all interfaces after the constructor, and has no setting for it.
    """
    if ray.util.get_node_ip_address() == LOOPBACK:
        bind = serve_replica.add_port_to_grpc_server
        serve_replica.add_port_to_grpc_server = partial(_bind_to_loopback, bind)


def _bind_to_loopback(bind: Callable[[object, str], int], server: object, address: str) -> int:
    return bind(server, f"{LOOPBACK}:{address.rpartition(':')[2]}")
