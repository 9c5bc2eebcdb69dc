"""Builds the Serve application of real vLLM from the arguments of a config file. Ray's LLM library and vLLM
are imported only where it is built, in a task of the cluster."""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import ray
from ray import serve
from ray.serve import Application

from conf.ray_patches import model_card
from conf.specs.experiment import Experiment, Routing, VllmEngine
from serve_apps.routing.asgi import DESCRIPTION_PATH, Forwarding, ReplicaApp
from serve_apps.routing.serve_routers import (
    LOOPBACK,
    behind_router,
    engine_options,
    reserved_port,
    stay_on_loopback,
)
from serve_apps.vllm_engine.config_file import (
    KV_PACKAGE,
    OPTIONS,
    arguments,
    one_bundle,
    own_caches,
)
from serve_apps.vllm_recipes.recipes import Recipe, module_command

ENGINES, PREFILL = "LLMServer", "Prefill:"
"""Begin the names of the deployments whose replicas are engines that answer, as Ray's builder names them, and
of those that only compute prompts."""
DECODE, PROCESSES = f"{ENGINES}Decode:", f"{ENGINES}Process"


def is_process(experiment: Experiment) -> bool:
    """True if replicas are vLLM's own server processes, not those of `ray.serve.llm`."""
    return isinstance(experiment.engine, VllmEngine) and experiment.engine.server == "process"


def answering(experiment: Experiment) -> int:
    """Replicas of Serve's that answer: behind `ray.serve.llm` each data-parallel rank is one."""
    return experiment.replicas * (1 if is_process(experiment) else experiment.layout.data_parallel)


def vllm_app(experiment: Experiment, recipe: Recipe) -> Callable[[], Application]:
    """A function that builds the application of the engines of all nodes, in the cluster.

    Behind HAProxy requests go straight to the replicas, as with the simulated engine: HAProxy balances them,
    or asks a request router for each. With the Python proxy they and their tokens pass Ray's OpenAI ingress.
    """
    if is_process(experiment):
        return partial(_process_app, experiment, recipe)
    return partial(application, arguments(experiment, recipe))


def application(args: Mapping[str, Any]) -> Application:
    """The application of `config_file.arguments`; Ray Serve calls it for a config file that names it.

    Its engines, and what Ray puts before them, also report who answered and stay on the loopback address.
    """
    from ray.serve.llm import LLMConfig, build_llm_deployment, build_openai_app
    from ray.serve.llm.ingress import make_fastapi_ingress

    from serve_apps.vllm_engine import replica

    routing, server, names = Routing(**args["routing"]), replica.LLMServerReplica, dict[str, Any]()
    if "prefill_config" in args:
        # A decode replica is what clients reach. It chooses a prefill replica by Serve's own rule, the fewer
        # requests in flight of two, whatever `routing` says of its own.
        prefill, own = LLMConfig(**args["prefill_config"]), replica.PrefillServerReplica
        computes = build_llm_deployment(prefill, name_prefix=PREFILL, deployment_cls=own)
        names = {"name_prefix": DECODE, "bind_kwargs": {"prefill_server": computes}}
        config, server = args["decode_config"], replica.DecodeServerReplica
    else:
        (config,) = args["llm_configs"]
        if config["engine_kwargs"].get("data_parallel_size", 1) > 1:
            server = replica.LLMServerRank
    made = LLMConfig(**config, server_cls=server)
    if routing.policy == "kv_aware":  # Ray joins its router, which keeps the books, to the engines
        if find_spec("dynamo") is None:
            raise RuntimeError(f"routing=kv_aware needs {KV_PACKAGE} on all nodes: pip install {KV_PACKAGE}")
        return build_openai_app({"llm_configs": [made]})
    if routing.data_path != "python_proxy":
        answers = build_llm_deployment(made, deployment_cls=serve.ingress()(server), **names)
        return behind_router(answers, routing, replica.LoopbackRouter)
    ingress = make_fastapi_ingress(replica.LoopbackIngress)
    return serve.deployment(ingress, **args["ingress_deployment_config"]).bind(
        llm_deployments={made.model_id: build_llm_deployment(made, **names)},
        model_cards={made.model_id: model_card(made.model_id, made)},
        lora_paths={},
    )


def _process_app(experiment: Experiment, recipe: Recipe) -> Application:
    from serve_apps.vllm_engine.app import VllmProcessReplica

    engine, bundle = experiment.engine, one_bundle(experiment, experiment.layout)
    assert isinstance(engine, VllmEngine)
    options = engine_options(PROCESSES, experiment.replicas, bundle, experiment.routing) | OPTIONS
    options["ray_actor_options"]["runtime_env"] = {"env_vars": dict(recipe.env)}
    if engine.kind != "vllm":  # its GPUs are pretended
        options["ray_actor_options"]["num_gpus"] = 0.0
    deployment = serve.deployment(**options)(serve.ingress()(VllmProcessReplica))
    words = module_command(recipe, experiment.model, engine.model_path)
    return behind_router(deployment.bind(words, engine.start_timeout_s), experiment.routing)


POLL_S = 0.5
STOP_S = 12.0
"""A stop by signal has to end before Serve kills the replica (`config_file.OPTIONS`)."""
SERVER = "vllm.entrypoints.openai.api_server"
"""The module behind `vllm serve`, a command that CPU builds lack: it needs a distribution named vllm."""
LOG_TAIL_BYTES = 64_000
NO_CAUSE = ("WARNING", "Engine core initialization failed")
"""Words of lines that name an error but not its cause; processes that end later add warnings."""
GUARD = """
(while grep -qx "PPid:.$PPID" /proc/$$/status; do sleep 1; done; kill -KILL 0) 2>/dev/null &
exec "$@"
"""
"""Ends the group: an actor that is killed cannot stop its child, and an engine may outlive its own server."""


class VllmProcessReplica:
    """One server process. Serve calls the async constructor and replaces the replica when it is unhealthy.

    The server ends with the application: Serve sends it the shutdown of the lifespan protocol.
    """

    async def __init__(self, words: list[str], start_timeout_s: float) -> None:  # type: ignore[misc]
        stay_on_loopback()
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        self._log = Path(tempfile.gettempdir()) / f"vllm-{self._replica_id}.log"
        self._words = words
        began_s = time.monotonic()
        self._port = reserved_port()  # held as long as the replica lives
        address = f"{self._port.getsockname()[1]}"
        self._url = f"http://{LOOPBACK}:{address}"
        self._app = Forwarding(self._url, self._shut_down)
        argv = [sys.executable, "-m", SERVER, *words, "--host", LOOPBACK, "--port", address]
        with self._log.open("wb") as log:
            # A group of its own, so that its engine and workers end with it.
            self._process = await asyncio.create_subprocess_exec(
                *guarded(argv),
                env=own_caches(ray.get_gpu_ids(), str(Path.home())) | dict(os.environ),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            await self._await_ready(began_s + start_timeout_s)
        except BaseException:
            await self._stop()
            raise
        self._start_s = time.monotonic() - began_s

    async def __serve_build_asgi_app__(self) -> ReplicaApp:
        return ReplicaApp(self._app, self._replica_id, {DESCRIPTION_PATH: self._page})

    async def _page(self) -> dict[str, Any]:
        return {"pid": self._process.pid, "start_s": self._start_s, "engine": {"argv": self._words}}

    async def check_health(self) -> None:
        if self._process.returncode is not None:
            raise RuntimeError(f"vLLM ended with {self._process.returncode}: {self._said()}")

    async def _shut_down(self) -> None:
        """End the server. Its log stays if the server had failed, because a message names the file."""
        failed = self._process.returncode is not None
        await self._stop()
        if not failed:
            self._log.unlink(missing_ok=True)

    async def _await_ready(self, deadline_s: float) -> None:
        async with aiohttp.ClientSession() as client:
            while True:
                await self.check_health()
                with suppress(aiohttp.ClientError, OSError):
                    async with client.get(f"{self._url}/health", allow_redirects=False) as response:
                        if response.status == HTTPStatus.OK:
                            return
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"vLLM was not ready in time: {self._said()}")
                await asyncio.sleep(POLL_S)

    async def _stop(self) -> None:
        """End the server, and whatever of its group is left then."""
        self._signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), STOP_S)
        self._signal(signal.SIGKILL)
        await self._process.wait()
        self._port.close()

    def _signal(self, kind: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, kind)

    def _said(self) -> str:
        """The last error in its log, or else the last line, and where the log is."""
        tail = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        errors = [line for line in lines if "Error:" in line and not any(word in line for word in NO_CAUSE)]
        return f"{(errors or lines or ['it wrote nothing'])[-1]} (log: {self._log})"


def guarded(argv: Sequence[str]) -> list[str]:
    """`argv` as the leader of a group that is killed once it, or the process that starts it, has ended."""
    return ["/bin/sh", "-c", GUARD, "sh", *argv]
