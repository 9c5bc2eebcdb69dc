"""Builds the Serve application of an engine spec; knows Serve's options and nothing of a running cluster."""

import hashlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ray import serve
from ray.serve import Application
from ray.serve.schema import LoggingConfig

from conf.specs.experiment import Hardware, Layout, Model, Routing, SimulatedEngine
from serve_apps.engine_model.scheduler.engine import BlockEngine
from serve_apps.routing.loopback import stay_on_loopback
from serve_apps.routing.serve_routers import behind_router, request_router
from serve_apps.simulated.openai_answers import ServedModel
from serve_apps.simulated.server import RealtimeEngine, SimulatedApp

NO_QUEUE_LIMIT = 1_000_000
"""Requests wait in the engine, where they are counted, never in front of it (Serve's default is 5)."""
HEALTH_CHECK_PERIOD_S = 2.0
SHUTDOWN_GRACE_S = 5.0
ENGINES = "SimulatedReplica"
"""The deployment whose replicas are engines; behind HAProxy another one may choose between them."""


class EngineSpecs(NamedTuple):
    """The configuration groups that make a simulated engine."""

    engine: SimulatedEngine
    model: Model
    hardware: Hardware
    layout: Layout


def application_name(*specs: object) -> str:
    """One application name per configuration: a router outlives an application of the same name."""
    return f"sim-{hashlib.sha256(repr(specs).encode()).hexdigest()[:12]}"


def build_app(
    specs: EngineSpecs,
    replicas: int,
    bundles: Sequence[dict[str, float]],
    seed: int = 0,
    routing: Routing | None = None,
) -> Application:
    """`replicas` independent engines, each on `bundles` of one node (STRICT_PACK).

    Without `routing` the proxy's own default chooses between them. Raises ValueError for an engine that does
    not fit the hardware.
    """
    BlockEngine(*specs)  # refuses an engine that cannot run here, not in every replica
    options: dict[str, Any] = {
        "name": ENGINES,
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
    router = request_router(routing) if routing else None
    if router is not None:
        options["request_router_config"] = router
    deployment = serve.deployment(**options)(serve.ingress()(SimulatedReplica))
    app = deployment.bind(specs, seed)
    return behind_router(app, routing) if routing else app


class SimulatedReplica:
    """One engine behind Serve's HTTP server. Serve calls the two methods and replaces it when unhealthy."""

    def __init__(self, specs: EngineSpecs, seed: int) -> None:
        engine, model = specs.engine, specs.model
        stay_on_loopback()
        context = serve.get_replica_context()
        self._replica_id = context.replica_id.unique_id
        replica = BlockEngine(*specs, seed=seed + context.rank.rank)
        self._engine = RealtimeEngine(replica, time_scale=engine.time_scale)
        block_size = engine.block_size if engine.enable_prefix_caching else 0
        self._served = ServedModel(
            model.served_name,
            engine.max_model_len,
            model.vocab,
            int(time.time()),
            block_size,
            model.image_token_px,
            engine.defect,
        )

    async def __serve_build_asgi_app__(self) -> SimulatedApp:
        self._engine.start()
        return SimulatedApp(self._engine, self._served, self._replica_id)

    async def check_health(self) -> None:
        if self._engine.failure:
            raise RuntimeError(self._engine.failure)
