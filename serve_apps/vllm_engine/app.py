"""Builds the Serve application of real vLLM from the arguments of a config file.

Ray's LLM library and vLLM are imported only where the application is built: in a task of the cluster, where
both are installed and the environment is that of the replicas. The driver needs neither.
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from ray import serve
from ray.serve import Application

from conf.ray_patches import model_card
from conf.specs.experiment import Layout, Model, Routing, VllmEngine
from serve_apps.routing.serve_routers import behind_router, request_router
from serve_apps.vllm_engine.config_file import KV_PACKAGE, OPTIONS, arguments
from serve_apps.vllm_recipes.recipes import NO_QUEUE_LIMIT, Recipe, module_command, one_bundle

ENGINES = "LLMServer"
"""The deployment whose replicas are engines has a name that begins so; another routes to them."""
PREFILL, DECODE = "Prefill:", "Decode:"
"""The same for each side of a split layout, as Ray's builder names them; decode engines answer clients."""
PROCESSES = "VllmProcess"


def engines_prefix(engine: VllmEngine, layout: Layout) -> str:
    """Beginning of the names of the deployments whose replicas are engines that answer."""
    if layout.prefill is not None:
        return DECODE
    return PROCESSES if engine.server == "process" else ENGINES


def answering(engine: VllmEngine, layout: Layout) -> int:
    """Replicas of Serve's for each of ours: behind `ray.serve.llm` each data-parallel rank is one."""
    return 1 if engine.server == "process" else layout.data_parallel


def vllm_app(
    engine: VllmEngine,
    model: Model,
    layout: Layout,
    routing: Routing,
    recipe: Recipe,
    replicas: int,
    prefill_replicas: int = 0,
) -> Callable[[], Application]:
    """A function that builds the application of `replicas` engines that answer clients, in the cluster.

    In a split layout these are the decode engines, with `prefill_replicas` behind them.

    Behind HAProxy requests go straight to the replicas, as with the simulated engine: HAProxy balances them,
    or asks a request router for each. With the Python proxy they and their tokens pass Ray's OpenAI ingress.
    """
    if engine.server == "process":
        return partial(_process_app, engine, model, routing, recipe, replicas, one_bundle(engine, layout))
    args = arguments(engine, model, layout, routing, recipe, replicas, prefill_replicas)
    return partial(application, args)


def application(args: Mapping[str, Any]) -> Application:
    """The application of `config_file.arguments`; Ray Serve calls it for a config file that names it.

    Its engines, and what Ray puts before them, also report who answered and stay on the loopback address.
    """
    from ray.serve.llm import LLMConfig, build_llm_deployment, build_openai_app

    from serve_apps.vllm_engine.replica import (
        LLMServerRank,
        LLMServerReplica,
        LoopbackIngress,
        LoopbackRouter,
    )

    routing = Routing(**args["routing"])
    if "prefill_config" in args:
        return _split(args, routing)
    (config,) = args["llm_configs"]
    ranks = config["engine_kwargs"].get("data_parallel_size", 1)
    server = LLMServerRank if ranks > 1 else LLMServerReplica
    made = LLMConfig(**config, server_cls=server)
    if routing.data_path == "python_proxy":
        front = {"ingress_cls_config": {"ingress_cls": LoopbackIngress}}
        own = {"ingress_deployment_config": args["ingress_deployment_config"]}
        return build_openai_app({"llm_configs": [made], **front, **own})
    if routing.policy == "kv_aware":  # Ray joins its router, which keeps the books, to the engines
        if find_spec("dynamo") is None:
            raise RuntimeError(f"routing=kv_aware needs {KV_PACKAGE} on all nodes: pip install {KV_PACKAGE}")
        return build_openai_app({"llm_configs": [made]})
    app = build_llm_deployment(made, deployment_cls=serve.ingress()(server))
    return behind_router(app, routing, LoopbackRouter)


def _split(args: Mapping[str, Any], routing: Routing) -> Application:
    """Both sides of a split layout as `build_pd_openai_app` joins them, with replicas of ours.

    A decode replica is what clients reach. It chooses a prefill replica by Serve's own rule, the fewer
    requests in flight of two, whatever `routing` says of its own.
    """
    from ray.serve.llm import LLMConfig, build_llm_deployment
    from ray.serve.llm.ingress import make_fastapi_ingress

    from serve_apps.vllm_engine.replica import (
        DecodeServerReplica,
        LoopbackIngress,
        LoopbackRouter,
        PrefillServerReplica,
    )

    prefill, decode = (LLMConfig(**args[f"{side}_config"]) for side in ("prefill", "decode"))
    computes = build_llm_deployment(prefill, name_prefix=PREFILL, deployment_cls=PrefillServerReplica)
    direct = routing.data_path != "python_proxy"
    answers = build_llm_deployment(
        decode,
        name_prefix=DECODE,
        bind_kwargs={"prefill_server": computes},
        deployment_cls=serve.ingress()(DecodeServerReplica) if direct else DecodeServerReplica,
    )
    if direct:
        return behind_router(answers, routing, LoopbackRouter)
    ingress = make_fastapi_ingress(LoopbackIngress)
    model = decode.model_id
    return serve.deployment(ingress, **args["ingress_deployment_config"]).bind(
        llm_deployments={model: answers},
        model_cards={model: model_card(model, decode)},
        lora_paths={},
    )


def _process_app(
    engine: VllmEngine,
    model: Model,
    routing: Routing,
    recipe: Recipe,
    replicas: int,
    bundle: dict[str, float],
) -> Application:
    from serve_apps.vllm_engine.process_server import VllmProcessReplica

    router = request_router(routing)
    options = ({"request_router_config": router} if router else {}) | OPTIONS
    options |= {
        "name": PROCESSES,
        "num_replicas": replicas,
        "max_ongoing_requests": NO_QUEUE_LIMIT,
        "max_queued_requests": -1,
        "ray_actor_options": {
            "num_cpus": bundle.get("CPU", 0.0),
            # Ray then tells this replica alone which devices are its own.
            "num_gpus": bundle.get("GPU", 0.0) if engine.kind == "vllm" else 0.0,
            "runtime_env": {"env_vars": dict(recipe.env)},
        },
        "placement_group_bundles": [bundle],
        "placement_group_strategy": "STRICT_PACK",
    }
    deployment = serve.deployment(**options)(serve.ingress()(VllmProcessReplica))
    app = deployment.bind(module_command(recipe, model, engine.model_path), engine.start_timeout_s)
    return behind_router(app, routing)
