"""A simulated engine that is asked prompts with shared beginnings."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn

from conf import Experiment
from loadgen.cli.engine_model import parts
from serve_apps.engine_model import Engine, EngineKind
from serve_apps.routing.asgi import ReplicaApp
from serve_apps.simulated.openai_answers import ServedModel
from serve_apps.simulated.realtime_engine import RealtimeEngine
from serve_apps.simulated.server import SimulatedApp


@asynccontextmanager
async def application(experiment: Experiment) -> AsyncIterator[ReplicaApp]:
    """The application of one replica, whose engine runs meanwhile."""
    spec, model, *_ = parts(experiment)
    engine = RealtimeEngine(Engine(EngineKind.of(*parts(experiment))), time_scale=spec.time_scale)
    served = ServedModel(model.served_name, spec.max_model_len, model.vocab, block_size=spec.block_size)
    engine.start()
    try:
        yield ReplicaApp(SimulatedApp(engine, served), "r0")
    finally:
        engine.stop()


@asynccontextmanager
async def simulated(experiment: Experiment) -> AsyncIterator[str]:
    """The address of that application behind the HTTP server that Serve uses too."""
    async with application(experiment) as app:
        config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off", access_log=False)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110  it tells in no other way
            await asyncio.sleep(0.01)
        host, port = server.servers[0].sockets[0].getsockname()
        try:
            yield f"http://{host}:{port}"
        finally:
            server.should_exit = True
            await serving
