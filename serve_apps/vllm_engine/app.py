"""Builds the Serve application of real vLLM from a recipe; knows Serve's options, and no running cluster.

Ray's LLM library and vLLM are imported only where the application is built: in a task of the cluster, where
both are installed and the environment is that of the replicas. The driver needs neither.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ray import serve
from ray.serve import Application

from conf.specs.experiment import Layout, Model, Routing, VllmEngine
from serve_apps.routing.serve_routers import behind_router, request_router
from serve_apps.vllm_recipes.recipes import NO_QUEUE_LIMIT, Recipe, llm_config, module_command, one_bundle

ENGINES = "LLMServer"
"""The deployment whose replicas are engines has a name that begins so; another routes to them."""
PROCESSES = "VllmProcess"
HEALTH_CHECK_PERIOD_S = 5.0
SHUTDOWN_GRACE_S = 20.0


def environment(engine: VllmEngine, routing: Routing) -> dict[str, str]:
    """Variables of Serve's processes on all nodes at their start, besides those of the routing."""
    if engine.server == "process":
        return {}
    direct = routing.data_path != "python_proxy"
    return {
        # HAProxy sends a request straight to the replica that was chosen, and its tokens straight back.
        "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1" if direct else "0",
        # Batches of 50 ms are Ray's default; they would hide when a token came.
        "RAYLLM_MODEL_RESPONSE_BATCH_TIMEOUT_MS": "0",
        "RAYLLM_ENGINE_START_TIMEOUT_S": str(round(engine.start_timeout_s)),
        "RAYLLM_ENABLE_REQUEST_PROMPT_LOGS": "0",
    }


def engines_prefix(engine: VllmEngine) -> str:
    """Beginning of the names of the deployments whose replicas are engines."""
    return PROCESSES if engine.server == "process" else ENGINES


def vllm_app(
    engine: VllmEngine,
    model: Model,
    layout: Layout,
    routing: Routing,
    recipe: Recipe,
    replicas: int,
    bundles: Sequence[dict[str, float]],
) -> Callable[[], Application]:
    """A function that builds the application in the cluster: `replicas` engines on `bundles` each.

    Behind HAProxy requests go straight to the replicas, as with the simulated engine: HAProxy balances them,
    or asks a request router for each. With the Python proxy they and their tokens pass Ray's OpenAI ingress.
    """
    if engine.server == "process":
        bundle = one_bundle(bundles, engine, layout)
        return partial(_process_app, engine, model, routing, recipe, replicas, bundle)
    config = llm_config(engine, model, layout, recipe, replicas, bundles)
    return partial(_llm_app, config, routing)


def _llm_app(config: Mapping[str, Any], routing: Routing) -> Application:
    from ray.llm._internal.serve.core.server.builder import build_llm_deployment
    from ray.serve.llm import LLMConfig, build_openai_app

    from serve_apps.vllm_engine.replica import LLMServerReplica, LoopbackIngress

    options = _serve_options(routing) | dict(config["deployment_config"])
    made = LLMConfig(
        **{**config, "deployment_config": options}, server_cls=LLMServerReplica, log_engine_metrics=False
    )
    if routing.data_path == "python_proxy":
        ingress = {
            "num_replicas": config["deployment_config"]["num_replicas"],
            "max_ongoing_requests": NO_QUEUE_LIMIT,
            "ray_actor_options": {"num_cpus": 0},
        }
        front = {"ingress_cls": LoopbackIngress}
        return build_openai_app(
            {"llm_configs": [made], "ingress_cls_config": front, "ingress_deployment_config": ingress}
        )
    app = build_llm_deployment(made, deployment_cls=serve.ingress()(LLMServerReplica))
    return behind_router(app, routing)


def _process_app(
    engine: VllmEngine,
    model: Model,
    routing: Routing,
    recipe: Recipe,
    replicas: int,
    bundle: dict[str, float],
) -> Application:
    from serve_apps.vllm_engine.process_server import VllmProcessReplica

    options = _serve_options(routing) | {
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


def _serve_options(routing: Routing) -> dict[str, Any]:
    router = request_router(routing)
    return ({"request_router_config": router} if router else {}) | {
        "health_check_period_s": HEALTH_CHECK_PERIOD_S,
        "graceful_shutdown_timeout_s": SHUTDOWN_GRACE_S,
        # What does not start does not start the next time either, after minutes of loading; by default each
        # replica has three tries. One that has served before is replaced as often as it takes.
        "max_constructor_retry_count": 1,
        "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
    }
