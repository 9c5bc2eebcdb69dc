"""A vLLM engine made ready to deploy: its recipe, its model folder if we write one, and the Ray Serve config
file that a sweep deploys and `render` prints. Needs no Ray."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from conf.specs.experiment import Experiment, Layout, Model, Routing, VllmEngine
from conf.specs.routing import TEXT_POLICIES
from serve_apps.engine_model.cost.architecture import weight_bytes
from serve_apps.routing.policies import NO_QUEUE_LIMIT, router_options
from serve_apps.vllm_emulated.gpu import emulated
from serve_apps.vllm_emulated.platform_plugin import installed_vllm
from serve_apps.vllm_recipes import kv_transfer, vllm_flags
from serve_apps.vllm_recipes.kv_transfer import Side
from serve_apps.vllm_recipes.model_folder import write_folder
from serve_apps.vllm_recipes.recipes import Recipe, check_request, resolve

MOST_CPU_BYTES = 4e9
"""Most bytes of random weights for a functional test on a CPU (our choice)."""
INSTALL = "make vllm, then .venv-vllm/bin/python -m loadgen ..."
"""Command that installs vLLM in an environment of its own."""


@dataclass(frozen=True, slots=True)
class VllmService:
    """An experiment on vLLM, and the version of that; empty if it is not installed here."""

    experiment: Experiment
    version: str

    @property
    def engine(self) -> VllmEngine:
        assert isinstance(self.experiment.engine, VllmEngine)
        return self.experiment.engine

    def recipe(self, by_hand: bool = False) -> Recipe:
        """The recipe of a deployment, or of vLLM's own servers, which a person starts.

        It is that of both sides of a split layout, for an emulated engine with what switches emulation on.
        Raises ValueError as `resolve` and `emulated` do.
        """
        model, hardware, layout = self.experiment.model, self.experiment.hardware, self.experiment.layout
        engine = replace(self.engine, server="process") if by_hand else self.engine
        recipe = resolve(engine, model, layout, self.version, hardware, deployed=not by_hand)
        return emulated(recipe, engine, model, hardware, layout)

    def described(self, recipe: Recipe) -> dict[str, Any]:
        """The engine as the manifest keeps it; of a split layout the decode engines, and `prefill`."""
        prefill = recipe.prefill
        return {
            "kind": self.engine.kind,
            "server": self.engine.server,
            "vllm": self.version or None,
            "args": recipe.args,
            "env": recipe.env,
            "notes": list(recipe.notes),
            **({"prefill": {"args": prefill.args, "env": prefill.env}} if prefill else {}),
        }


def prepared(
    experiment: Experiment, request_tokens: int, prompt_tokens: int = 0
) -> tuple[VllmService, Recipe]:
    """The service and its recipe, checked as far as possible without the nodes.

    The longest request has `request_tokens`, its answer included; a usual prompt has `prompt_tokens`.
    Writes nothing: `with_folder` does. Raises ValueError with the remedy for what cannot be deployed.
    """
    service = VllmService(experiment, installed_vllm())
    engine, model = service.engine, experiment.model
    _refuse_version(engine, service.version)
    _refuse_folder(engine)
    model_bytes = weight_bytes(model)
    if engine.kind == "vllm_cpu" and not engine.model_path and model_bytes > MOST_CPU_BYTES:
        raise ValueError(
            f"engine=vllm_cpu would write {model_bytes / 1e9:.0f} GB of random weights of {model.name}; use "
            "model=tiny_qwen3_moe layout=dp1_tp1 workload=smoke, or give engine.model_path=FOLDER"
        )
    recipe = service.recipe()
    notes = check_request(recipe, model, request_tokens, prompt_tokens)
    if not service.version and not engine.vllm_version:
        newest = vllm_flags.text(vllm_flags.NEWEST)
        notes = (*notes, f"no vLLM here: flags are those of {newest}; set engine.vllm_version to the nodes'")
    return service, replace(recipe, notes=(*recipe.notes, *notes))


def with_folder(experiment: Experiment) -> Experiment:
    """The experiment with its model's folder written here, if none is named and none is downloaded."""
    engine, model = experiment.engine, experiment.model
    if not isinstance(engine, VllmEngine) or engine.kind == "vllm" or engine.model_path:
        return experiment
    weights = engine.kind == "vllm_cpu"
    folder = write_folder(model, folder_of(model, weights), weights=weights)
    return replace(experiment, engine=replace(engine, model_path=str(folder)))


def folder_of(model: Model, weights: bool) -> Path:
    """Path of the folder of `model` that we write: one for each architecture."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(repr((model, weights)).encode()).hexdigest()[:12]
    return home / "maxqps" / "models" / f"{model.served_name.replace('/', '--')}-{digest}"


def _refuse_version(engine: VllmEngine, installed: str) -> None:
    if engine.kind != "vllm" and not installed:
        raise ValueError(
            f"engine={engine.kind} needs vLLM's CPU build, which is not installed here: {INSTALL}"
        )
    wanted = engine.vllm_version
    # A build may add to its number, as 0.14.1+rocm641 does.
    if wanted and installed and vllm_flags.parse(wanted) != vllm_flags.parse(installed):
        raise ValueError(
            f"engine.vllm_version={wanted} but vLLM {installed} is installed; leave it out, or install that"
        )


def _refuse_folder(engine: VllmEngine) -> None:
    """Raise ValueError for a folder without config.json; that of a GPU engine is on the nodes only."""
    folder = engine.model_path
    if engine.kind != "vllm" and folder and not (Path(folder) / "config.json").is_file():
        raise ValueError(
            f"engine.model_path={folder} has no config.json here; leave it out, or make the folder by "
            "python -m serve_apps model FOLDER"
        )


RAY_BUILDER = "ray.serve.llm:build_openai_app"
OUR_BUILDER = "serve_apps.vllm_engine.app:application"
SERVERS = "ray.serve.llm.deployment"
LOGGING = {"enable_access_log": False, "log_level": "WARNING"}
OPTIONS = {
    "health_check_period_s": 5.0,
    "graceful_shutdown_timeout_s": 20.0,
    # What does not start does not start the next time either, after minutes of loading; by default each
    # replica has three tries. One that has served before is replaced as often as it takes.
    "max_constructor_retry_count": 1,
    "logging_config": LOGGING,
}
"""Serve's options of every deployment of engines."""
KV_PACKAGE = "ai-dynamo-runtime"
"""The package that tracks KV blocks for `kv_aware`."""
ROUTED_BODY_BYTES = 2**20
"""Longest body that HAProxy hands to a router that reads it; its own 8 MiB would count twice per stream."""

Tree = dict[str, Any]


def environment(engine: VllmEngine, routing: Routing) -> dict[str, str]:
    """Variables of Serve's processes on all nodes at their start, besides those of every engine."""
    if engine.server == "process":
        return {}
    variables = {
        # HAProxy sends a request straight to the replica that was chosen, and its tokens straight back.
        "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "0" if routing.data_path == "python_proxy" else "1",
        # Batches of 50 ms are Ray's default; they would hide when a token came.
        "RAYLLM_MODEL_RESPONSE_BATCH_TIMEOUT_MS": "0",
        "RAYLLM_ENGINE_START_TIMEOUT_S": str(round(engine.start_timeout_s)),
        "RAYLLM_ENABLE_REQUEST_PROMPT_LOGS": "0",
    }
    if routing.policy in TEXT_POLICIES and routing.data_path == "haproxy":
        variables["RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY"] = "1"
        variables["RAY_SERVE_HAPROXY_INGRESS_REQUEST_ROUTER_BUFSIZE"] = str(ROUTED_BODY_BYTES)
    return variables


def arguments(experiment: Experiment, recipe: Recipe) -> Tree:
    """Arguments of `OUR_BUILDER` for the engines of all nodes; of a split layout decode engines answer."""
    layout, routing, config = experiment.layout, experiment.routing, dict[str, Any]()
    sides: dict[Side, tuple[Layout, Recipe]] = {"decode": (layout.decode_side, recipe)}
    if layout.prefill_side is not None:
        assert recipe.prefill is not None, "a split layout has two recipes"
        sides = {"prefill": (layout.prefill_side, recipe.prefill), **sides}
    configs: Tree = {}
    for side, (engines, own) in sides.items():
        configs[f"{side}_config"] = config = llm_config(experiment, engines, own)
        if len(sides) > 1:
            config["experimental_configs"] |= kv_transfer.ray_ports(layout, side)
    if router := router_options(routing):
        config["deployment_config"]["request_router_config"] = router
    if len(sides) == 1:
        configs = {"llm_configs": [config]}
    if routing.data_path == "python_proxy":
        # As many of Ray's OpenAI ingress as there are engines behind it.
        configs["ingress_deployment_config"] = {
            "num_replicas": experiment.replicas,
            "max_ongoing_requests": NO_QUEUE_LIMIT,
            "ray_actor_options": {"num_cpus": 0},
        }
    return {"routing": asdict(routing), **configs}


def application(routing: Routing, arguments: Mapping[str, Any]) -> Tree:
    """The application of a config file that deploys these `arguments`.

    Ray's own builder deploys them if a router of Serve's chooses the replica. It attaches one always, so that
    HAProxy's own balancing needs our builder; and its prefill servers refuse `min_tokens` (ray 2.60).
    A router may outlive its application under the same name, hence one name for each policy.
    """
    ray_can = routing.data_path == "python_proxy" or router_options(routing) is not None
    args = dict(arguments)
    if ray_can and "llm_configs" in args:
        builder = RAY_BUILDER
        del args["routing"]
        (config,) = args["llm_configs"]
        ranks = config["engine_kwargs"].get("data_parallel_size", 1)
        server = "DPServer" if ranks > 1 else "LLMServer"  # the first keeps the ranks of a group together
        args["llm_configs"] = [{**config, "server_cls": f"{SERVERS}:{server}"}]
    else:
        builder = OUR_BUILDER
    name = f"vllm-{routing.policy.replace('_', '-')}"
    return {
        "name": name,
        "route_prefix": "/",
        "import_path": builder,
        "logging_config": dict(LOGGING),
        "args": args,
    }


NUMA_NODES = 2
"""NUMA nodes of an MI325X node, each with half of its GPUs: DigitalOcean's post on Character.ai of
13 January 2026."""
CACHES = ("TRITON_CACHE_DIR", "VLLM_CACHE_ROOT")
"""Cache folders written while kernels are compiled; replicas that share them disturb each other.

XDG_CACHE_HOME stays as it is: downloaded weights lie below it, which all replicas share.
"""


def own_caches(devices: Sequence[int | str], home: str) -> dict[str, str]:
    """Variables of the caches of the replica on `devices`, below `home`; empty without devices.

    The same devices find the same caches again, so that only the first start compiles.
    """
    if not devices:
        return {}
    gpus = "-".join(map(str, devices))
    return {name: f"{home}/.cache/maxqps/gpus-{gpus}/{name.lower()}" for name in CACHES}


def near(devices: Sequence[int], gpus_per_node: int) -> list[str]:
    """`numactl` for devices of one NUMA node; empty if they are in several."""
    half = max(1, gpus_per_node // NUMA_NODES)
    nodes = {device // half for device in devices}
    return ["numactl", f"--cpunodebind={min(nodes)}", f"--membind={min(nodes)}"] if len(nodes) == 1 else []


def llm_config(experiment: Experiment, layout: Layout, recipe: Recipe) -> dict[str, Any]:
    """The fields of a `ray.serve.llm.LLMConfig` as plain data: independent engines on all nodes.

    With data-parallel ranks each rank is a replica of Serve's with GPUs of its own, and `num_replicas` counts
    the groups, as Ray's builder does; Ray then packs a group, on one node if it fits. The bundles of a
    replica are on one node (STRICT_PACK: the default may span nodes), one bundle for each GPU, as vLLM's Ray
    executor needs them. `layout` is that of the engines: of a split layout one side.
    """
    engine, model = experiment.engine, experiment.model
    assert isinstance(engine, VllmEngine)
    on_gpus = engine.kind == "vllm"
    config: dict[str, Any] = {
        "model_loading_config": {
            "model_id": model.served_name,
            "model_source": engine.model_path or model.served_name,
        },
        "engine_kwargs": {
            name: value for name, value in recipe.args.items() if name != "distributed_executor_backend"
        },
        "runtime_env": {"env_vars": dict(recipe.env)},
        "accelerator_config": {"kind": "gpu" if on_gpus else "cpu"},
        "placement_group_config": {
            # Without GPUs one process serves: pretended ones only keep a node's replicas apart.
            "bundles": _one_per_gpu(experiment, layout) if on_gpus else [one_bundle(experiment, layout)],
            "strategy": "STRICT_PACK",
        },
        "deployment_config": {
            "num_replicas": experiment.cluster.nodes * layout.replicas_per_node,
            "max_ongoing_requests": NO_QUEUE_LIMIT,
            "max_queued_requests": -1,
            "ray_actor_options": {"num_cpus": 0},
            **deepcopy(OPTIONS),
        },
        # Its 50 ms batches of tokens hide when a token came (ray #59681).
        "experimental_configs": {"stream_batching_interval_ms": 0},
        # vLLM's own /metrics has them; Ray's copy costs the engine's process time.
        "log_engine_metrics": False,
    }
    if engine.accelerator_type:
        config["accelerator_type"] = engine.accelerator_type
    return config


def one_bundle(experiment: Experiment, layout: Layout) -> dict[str, float]:
    """The resources of a replica that is one process to Ray, with what chooses its node."""
    own, engine = _share_of_node(experiment, layout), experiment.engine
    if isinstance(engine, VllmEngine) and engine.accelerator_type:
        own[f"accelerator_type:{engine.accelerator_type}"] = 0.001  # the share that Ray itself requires
    return layout.replica_resources | own


def _one_per_gpu(experiment: Experiment, layout: Layout) -> list[dict[str, float]]:
    """A bundle for each GPU of a rank; the first also has the CPU share and a share of the node."""
    gpus = [{"GPU": 1.0} for _ in range(layout.tensor_parallel)]
    node = _share_of_node(experiment, layout)
    share = {name: part / layout.data_parallel for name, part in node.items()}
    return [{**layout.replica_resources, "GPU": 1.0, **share}, *gpus[1:]]


def _share_of_node(experiment: Experiment, layout: Layout) -> dict[str, float]:
    """All engines of a node together have one unit of the resource, on a split node by their GPUs."""
    engine, whole = experiment.engine, experiment.layout
    if not isinstance(engine, VllmEngine) or not engine.node_resource:
        return {}
    share = layout.gpus_per_replica / whole.gpus_per_node if whole.prefill else 1.0 / layout.replicas_per_node
    return {engine.node_resource: share}
