"""Builds the Serve application of real vLLM from a recipe; knows Serve's options, and no running cluster.

Ray's LLM library and vLLM are imported only where the application is built: in a task of the cluster, where
both are installed and the environment is that of the replicas. The driver needs neither.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ray import serve
from ray.serve import Application

from conf.specs.experiment import Layout, Model, Routing, VllmEngine
from serve_apps.routing.serve_routers import behind_router, request_router
from serve_apps.vllm_recipes.kv_transfer import Side
from serve_apps.vllm_recipes.recipes import (
    NO_QUEUE_LIMIT,
    Recipe,
    llm_config,
    module_command,
    one_bundle,
    pd_configs,
)

ENGINES = "LLMServer"
"""The deployment whose replicas are engines has a name that begins so; another routes to them."""
PREFILL, DECODE = "Prefill:", "Decode:"
"""The same for each side of a split layout, as Ray's builder names them; decode engines answer clients."""
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


def engines_prefix(engine: VllmEngine, layout: Layout) -> str:
    """Beginning of the names of the deployments whose replicas are engines that answer."""
    if layout.prefill is not None:
        return DECODE
    return PROCESSES if engine.server == "process" else ENGINES


@dataclass(frozen=True, slots=True)
class Replicated:
    """A number of engines of a kind, on `bundles` each."""

    count: int = 0
    bundles: Sequence[dict[str, float]] = ()


NONE = Replicated()


def answering(engine: VllmEngine, layout: Layout) -> int:
    """Replicas of Serve's for each of ours: behind `ray.serve.llm` each data-parallel rank is one."""
    return 1 if engine.server == "process" else layout.data_parallel


def vllm_app(
    engine: VllmEngine,
    model: Model,
    layout: Layout,
    routing: Routing,
    recipe: Recipe,
    answering: Replicated,
    prefill: Replicated = NONE,
) -> Callable[[], Application]:
    """A function that builds the application in the cluster: the `answering` engines, of a split layout its
    decode engines, and the `prefill` engines behind those.

    Behind HAProxy requests go straight to the replicas, as with the simulated engine: HAProxy balances them,
    or asks a request router for each. With the Python proxy they and their tokens pass Ray's OpenAI ingress.
    """
    if layout.prefill is not None:
        counts: dict[Side, int] = {"prefill": prefill.count, "decode": answering.count}
        each: dict[Side, Sequence[dict[str, float]]] = {
            "prefill": prefill.bundles,
            "decode": answering.bundles,
        }
        return partial(_pd_app, pd_configs(engine, model, layout, recipe, counts, each), routing)
    if engine.server == "process":
        bundle = one_bundle(answering.bundles, engine, layout)
        return partial(_process_app, engine, model, routing, recipe, answering.count, bundle)
    config = llm_config(engine, model, layout, recipe, answering.count, answering.bundles)
    return partial(_llm_app, config, routing)


def _llm_app(config: Mapping[str, Any], routing: Routing) -> Application:
    from ray.llm._internal.serve.core.server.builder import build_llm_deployment
    from ray.serve.llm import LLMConfig, build_openai_app

    from serve_apps.vllm_engine.replica import LLMServerRank, LLMServerReplica, LoopbackIngress

    ranks = config["engine_kwargs"].get("data_parallel_size", 1)
    server = LLMServerRank if ranks > 1 else LLMServerReplica
    options = _serve_options(routing) | dict(config["deployment_config"])
    made = LLMConfig(**{**config, "deployment_config": options}, server_cls=server, log_engine_metrics=False)
    if routing.data_path == "python_proxy":
        front = {"ingress_cls": LoopbackIngress}
        ingress = _ingress_options(config)
        return build_openai_app(
            {"llm_configs": [made], "ingress_cls_config": front, "ingress_deployment_config": ingress}
        )
    app = build_llm_deployment(made, deployment_cls=serve.ingress()(server))
    return behind_router(app, routing)


def _pd_app(configs: Mapping[str, Mapping[str, Any]], routing: Routing) -> Application:
    """Both sides of a split layout as `build_pd_openai_app` joins them, with replicas of ours.

    A decode replica is what clients reach. It chooses a prefill replica by Serve's own rule, the fewer
    requests in flight of two, whatever `routing` says of its own.
    """
    from ray.llm._internal.common.dict_utils import maybe_apply_llm_deployment_config_defaults
    from ray.llm._internal.serve.core.configs.openai_api_models import to_model_metadata
    from ray.llm._internal.serve.core.ingress.ingress import make_fastapi_ingress
    from ray.llm._internal.serve.core.server.builder import build_llm_deployment
    from ray.llm._internal.serve.serving_patterns.prefill_decode.builder import PDServingArgs
    from ray.serve.llm import LLMConfig

    from serve_apps.vllm_engine.replica import DecodeServerReplica, LoopbackIngress, PrefillServerReplica

    options = {"prefill_config": _deployment_options(), "decode_config": _serve_options(routing)}
    made = {
        name: LLMConfig(
            **{**config, "deployment_config": options[name] | dict(config["deployment_config"])},
            log_engine_metrics=False,
        )
        for name, config in configs.items()
    }
    both = PDServingArgs.model_validate(made)
    computes = build_llm_deployment(
        both.prefill_config, name_prefix=PREFILL, deployment_cls=PrefillServerReplica
    )
    direct = routing.data_path != "python_proxy"
    answers = build_llm_deployment(
        both.decode_config,
        name_prefix=DECODE,
        bind_kwargs={"prefill_server": computes},
        deployment_cls=serve.ingress()(DecodeServerReplica) if direct else DecodeServerReplica,
    )
    if direct:
        return behind_router(answers, routing)
    own = _ingress_options(configs["decode_config"])
    options_of_all = maybe_apply_llm_deployment_config_defaults(
        LoopbackIngress.get_deployment_options([both.decode_config]), own
    )
    model = both.decode_config.model_id
    front = serve.deployment(make_fastapi_ingress(LoopbackIngress), **options_of_all)
    return front.bind(
        llm_deployments={model: answers},
        model_cards={model: to_model_metadata(model, both.decode_config)},
        lora_paths={},
    )


def _ingress_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options of Ray's OpenAI ingress, as many as there are engines behind it."""
    return {
        "num_replicas": config["deployment_config"]["num_replicas"],
        "max_ongoing_requests": NO_QUEUE_LIMIT,
        "ray_actor_options": {"num_cpus": 0},
    }


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
    """Serve's options of engines that clients reach: the router that `routing` asks for among them."""
    router = request_router(routing)
    return ({"request_router_config": router} if router else {}) | _deployment_options()


def _deployment_options() -> dict[str, Any]:
    return {
        "health_check_period_s": HEALTH_CHECK_PERIOD_S,
        "graceful_shutdown_timeout_s": SHUTDOWN_GRACE_S,
        # What does not start does not start the next time either, after minutes of loading; by default each
        # replica has three tries. One that has served before is replaced as often as it takes.
        "max_constructor_retry_count": 1,
        "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
    }
