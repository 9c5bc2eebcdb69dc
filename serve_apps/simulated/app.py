"""Builds the Serve application of simulated engines, also for a config file of Ray Serve's."""

import asyncio
import hashlib
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import ray
import uvicorn
from ray import serve
from ray.serve import Application
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from conf import ConfigError, load
from conf.specs.experiment import Experiment, Layout, Model, Routing, SimulatedEngine
from serve_apps.engine_model.cost.links import KvLink
from serve_apps.engine_model.engine.engine import Engine
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.routing.asgi import ReplicaApp
from serve_apps.routing.serve_routers import behind_router, engine_options, stay_on_loopback
from serve_apps.simulated.openai_answers import ApiRequest, ServedModel
from serve_apps.simulated.realtime_engine import RealtimeEngine
from serve_apps.simulated.server import SimulatedApp
from serve_apps.simulated.split_engines import Answers, RemotePrompts, compute

HEALTH_CHECK_PERIOD_S = 2.0
SHUTDOWN_GRACE_S = 5.0
BUILDER = f"{__name__}:application"
"""The `import_path` of a config file of Ray Serve's."""
ENGINES = "SimulatedReplica"
"""The deployment whose replicas answer; behind HAProxy another one may choose between them."""
PREFILL = "SimulatedPrefill"
"""The deployment whose replicas only compute prompts, in a split layout."""
PREFILL_PAGE = "/maxqps/prefill"
"""The path at which a replica that answers names the prefill replicas and their addresses."""
PREFILL_ROLE = "prefill"
"""Begins the names of prefill replicas among the samples of /metrics."""
PREFILL_SEED = 500_000
"""Added to the seeds of prefill engines, so that their noise is not that of decode engines."""
ADDRESSES_S = 5.0
"""Longest wait for the prefill replicas' answers to that."""


def application_name(experiment: Experiment) -> str:
    """One application name per configuration: a router outlives an application of the same name."""
    parts = experiment.engine, experiment.model, experiment.hardware, experiment.layout, experiment.routing
    return f"sim-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


def build_app(experiment: Experiment) -> Application:
    """The simulated engines of all nodes, each on its share of one node (STRICT_PACK).

    Those of a split layout decode, and reach the prefill engines, of all nodes, by a handle of Serve's.
    Raises ValueError for an engine that does not fit the hardware.
    """
    spec, model, layout, seed = experiment.engine, experiment.model, experiment.layout, experiment.seed
    assert isinstance(spec, SimulatedEngine)
    kind = EngineKind.of(spec, model, experiment.hardware, layout)
    options = _options(ENGINES, experiment.replicas, layout, experiment.routing)
    deployment = serve.deployment(**options)(serve.ingress()(SimulatedReplica))
    if kind.prefill is None or layout.prefill_side is None:
        app = deployment.bind(kind, model, seed)
    else:
        began_s = time.time()
        options = _options(PREFILL, experiment.prefill_replicas, layout.prefill_side, None)
        prompts = serve.deployment(**options)(SimulatedPrefill)
        prefill = prompts.bind(kind.prefill.engine, model, seed + PREFILL_SEED, began_s)
        app = deployment.bind(kind, model, seed, prefill, began_s)
    return behind_router(app, experiment.routing)


def application(args: Mapping[str, Any]) -> Application:
    """The application of `experiment`, the text of a saved configuration.

    How many engines run is for the config file to say. Raises ConfigError for another engine or a split one.
    """
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "config.yaml"
        saved.write_text(args["experiment"])
        experiment = load(base=saved)
    if not isinstance(experiment.engine, SimulatedEngine) or experiment.layout.prefill is not None:
        raise ConfigError("a Serve config file of ours holds one kind of simulated engine")
    return build_app(experiment)


def _options(name: str, replicas: int, layout: Layout, routing: Routing | None) -> dict[str, Any]:
    """Serve's options of a deployment of engines."""
    return engine_options(name, replicas, layout.replica_resources, routing) | {
        "health_check_period_s": HEALTH_CHECK_PERIOD_S,
        "graceful_shutdown_timeout_s": SHUTDOWN_GRACE_S,
        "logging_config": LoggingConfig(enable_access_log=False, log_level="WARNING"),
    }


def _started(kind: EngineKind, seed: int, began_s: float | None) -> RealtimeEngine:
    """The engine of this replica, running. `began_s` is the wall time at which its own time is 0."""
    replica = Engine(kind, seed + serve.get_replica_context().rank.rank)
    # Wall clocks jump, so the wall is looked at once; from then on the monotonic clock counts.
    epoch_s = None if began_s is None else time.monotonic() - (time.time() - began_s)
    engine = RealtimeEngine(replica, time_scale=kind.spec.time_scale, epoch_s=epoch_s)
    engine.start()
    return engine


def _served(kind: EngineKind, model: Model) -> ServedModel:
    return ServedModel(
        model.served_name,
        kind.spec.max_model_len,
        model.vocab,
        int(time.time()),
        kind.spec.block_size if kind.spec.enable_prefix_caching else 0,
        model.image_token_px,
        kind.spec.defect,
    )


class SimulatedReplica:
    """One engine behind Serve's HTTP server. Serve calls the two methods and replaces it when unhealthy.

    With `prefill` its prompts come from the engines behind that handle; all begin to count time at `began_s`.
    """

    def __init__(
        self,
        kind: EngineKind,
        model: Model,
        seed: int,
        prefill: DeploymentHandle | None = None,
        began_s: float | None = None,
    ) -> None:
        stay_on_loopback()
        self._kind, self._model, self._seed, self._began_s = kind, model, seed, began_s
        self._prefill = prefill
        self._engine: RealtimeEngine | None = None

    async def __serve_build_asgi_app__(self) -> ReplicaApp:
        kind, replica_id = self._kind, serve.get_replica_context().replica_id.unique_id
        self._engine = engine = _started(kind, self._seed, self._began_s)
        served = _served(kind, self._model)
        if kind.prefill is None:
            return ReplicaApp(SimulatedApp(engine, served), replica_id)
        prompts = RemotePrompts(engine, self._answers, KvLink(kind.prefill.seconds), kind.prefill.writes)
        app = SimulatedApp(engine, served, prompts)
        return ReplicaApp(app, replica_id, {PREFILL_PAGE: self._prefill_page})

    async def check_health(self) -> None:
        if self._engine and self._engine.failure:
            raise RuntimeError(self._engine.failure)

    async def _answers(self, request: ApiRequest, came_s: float) -> Answers:
        """The answers of the prefill replica that Serve chooses; closing this ends the call there."""
        assert self._prefill is not None
        response = self._prefill.options(stream=True).compute.remote(request, came_s)
        try:
            async for answer in response:
                yield answer
        finally:
            response.cancel()

    async def _prefill_page(self) -> dict[str, Any]:
        """The prefill replicas by their ids; those that do not answer now are left out."""
        assert self._prefill is not None
        try:
            responses = self._prefill.broadcast("report")
            pages = await responses.results_async(timeout_s=ADDRESSES_S, return_exceptions=True)
        except (TimeoutError, RuntimeError, RayServeException):
            pages = []
        return {"replicas": dict(each for each in pages if isinstance(each, tuple))}


class SimulatedPrefill:
    """One engine that only computes prompts, for the replicas that answer; Serve replaces it when unhealthy.

    Its metrics are at an HTTP port of its own, because Serve gives none to a deployment behind a handle.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, kind: EngineKind, model: Model, seed: int, began_s: float
    ) -> None:
        stay_on_loopback()
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        self._engine = _started(kind, seed, began_s)
        host = ray.util.get_node_ip_address()
        listener = socket.create_server((host, 0))
        self._url = f"http://{host}:{listener.getsockname()[1]}"
        app = ReplicaApp(
            SimulatedApp(self._engine, _served(kind, model)), f"{PREFILL_ROLE}-{self._replica_id}"
        )
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
        self._serving = asyncio.create_task(server.serve([listener]))

    async def compute(self, request: ApiRequest, came_s: float) -> Answers:
        """The prompt's one token, once; the KV is held until the call ends."""
        async with aclosing(compute(self._engine, request, came_s)) as answers:
            async for answer in answers:
                yield answer

    async def report(self) -> tuple[str, dict[str, Any]]:
        """The replica's id, the address of its metrics, and how many prompts it has computed."""
        return self._replica_id, {"url": self._url, "prompts": self._engine.metrics()["finished"]}

    async def check_health(self) -> None:
        if self._engine.failure:
            raise RuntimeError(self._engine.failure)
        if self._serving.done():
            error = None if self._serving.cancelled() else self._serving.exception()
            raise RuntimeError(f"the server of the metrics at {self._url} has ended: {error or 'no error'}")
