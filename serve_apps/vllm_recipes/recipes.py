"""The arguments and environment of vLLM for a model and a layout; needs no vLLM. Published settings and
presets are published_recipes.yaml."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from conf import kernels
from conf.io import bounded_yaml
from conf.specs.experiment import EmulatedEngine, Hardware, Layout, Model, SimulatedEngine, VllmEngine
from serve_apps.engine_model.cost.node import refuse_experts, refuse_small
from serve_apps.vllm_recipes import kv_transfer, rules, vllm_flags
from serve_apps.vllm_recipes.kv_transfer import TRANSFER, Side
from serve_apps.vllm_recipes.rules import PAPER, REFINED, VllmDeployment, backend_of
from serve_apps.vllm_recipes.vllm_flags import Version, argument_name, text

DEPRECATED: Version = (0, 14, 0)
"""The first version that needs a flag to serve some kinds of checkpoints (vLLM PR #31688)."""
VLLM_BLOCK, VLLM_MEMORY = 16, 0.9
"""Default tokens of a KV block, and default share of the memory, of vLLM on ROCm."""
AITER_HEAD_DIMS = (64, 128, 256)
"""Widths of a head that ROCM_AITER_FA serves: rocm_aiter_fa.py of vLLM 0.32.0."""


@dataclass(frozen=True, slots=True)
class Published:
    """Settings that one source printed for a model and a layout; `remark` says what it did not print."""

    model: str
    tensor_parallel: int
    replicas_per_node: int
    expert_parallel: bool
    version: str
    source: str
    remark: str
    args: Mapping[str, Any]
    env: Mapping[str, str]

    def fits(self, layout: Layout) -> bool:
        cut = (layout.tensor_parallel, layout.replicas_per_node, layout.expert_parallel)
        return cut == (self.tensor_parallel, self.replicas_per_node, self.expert_parallel)

    @property
    def cut(self) -> str:
        experts = f"/EP{self.tensor_parallel}" if self.expert_parallel else ""
        return f"{self.replicas_per_node} x TP{self.tensor_parallel}{experts}"


@cache
def tables() -> Mapping[str, Any]:
    """published_recipes.yaml, read once, with the `recipes` as `Published`."""
    tree = bounded_yaml.read(Path(__file__).with_name("published_recipes.yaml").read_text())
    recipes = tuple(_recipe(tree["bases"][row.pop("base")], row) for row in tree["recipes"])
    return {**tree, "recipes": recipes}


def _recipe(base: Mapping[str, Any], row: Mapping[str, Any]) -> Published:
    args = {"tensor_parallel_size": row["tensor_parallel"], **base["args"], **row.get("args", {})}
    env = {**base["env"], **row.get("env", {})}
    return Published(**{"replicas_per_node": 1, **base, **row, "args": args, "env": env})


def published(model: Model, layout: Layout) -> Published:
    """Published settings of the model and layout. Raises ValueError with the known ones if there are none."""
    recipes: Sequence[Published] = tables()["recipes"]
    of_model = [recipe for recipe in recipes if recipe.model == model.name]
    if not of_model:
        names = ", ".join(sorted({recipe.model for recipe in recipes}))
        raise ValueError(
            f"engine.recipe=published: there is none of {model.name}, only of {names}; use modern"
        )
    for recipe in of_model:
        if recipe.fits(layout):
            return recipe
    cuts = " or ".join(recipe.cut for recipe in of_model)
    raise ValueError(
        f"engine.recipe=published: {model.name} was published as {cuts}, not as layout {layout.name}; choose "
        "a layout of that kind or engine.recipe=modern"
    )


@dataclass(frozen=True, slots=True)
class Recipe:
    """`args` by the names of vLLM's arguments, complete; `env` of engine and workers; `notes` warn.

    `attention` is the attention backend that vLLM would choose, empty if the engine model makes no difference
    between backends; `unknown_speed` is one line if the engine model lacks the speed of that backend. In a
    split layout this is the recipe of the decode engines, `prefill` is that of the prefill engines, and the
    notes are about both.
    """

    args: dict[str, Any]
    env: dict[str, str]
    notes: tuple[str, ...] = ()
    attention: str = ""
    unknown_speed: str = ""
    prefill: "Recipe | None" = None


def resolve(
    engine: VllmEngine,
    model: Model,
    layout: Layout,
    vllm_version: str,
    hardware: Hardware,
    deployed: bool = True,
) -> Recipe:
    """The recipe of an engine: a preset, then the profile, the layout's limits and the user's own words.

    `vllm_version` is the installed version; if it is empty, `engine.vllm_version` or else the newest known
    version. `deployed` is false for commands that a person starts.
    Raises ValueError with one line for a deployment that would not start, or would not be what its layout
    says.
    """
    version = vllm_flags.parse(vllm_version or engine.vllm_version or text(vllm_flags.NEWEST))
    refuse_experts(model, layout)
    words, amd = _words(engine), "gfx" in hardware.arch
    draft = VllmDeployment(engine, model, layout, version, *words, amd, deployed=deployed)
    if layout.prefill_side is None:
        return _resolved(draft, hardware)
    draft = replace(draft, split=layout, own_transfer=kv_transfer.own(draft.args))
    prefill = _resolved(replace(draft, layout=layout.prefill_side), hardware, "prefill")
    decode = _resolved(replace(draft, layout=layout.decode_side), hardware, "decode")
    return replace(decode, prefill=prefill, notes=tuple(dict.fromkeys((*prefill.notes, *decode.notes))))


def _resolved(draft: VllmDeployment, hardware: Hardware, side: Side | None = None) -> Recipe:
    """The recipe of one engine, in a split layout of one `side`; `draft` has the user's own words."""
    engine, version = draft.engine, draft.version
    base = _base(draft)
    args = base.args | tables()["profiles"][engine.profile] | draft.layout.step_limits
    env, own_args = base.env, draft.args
    if side is not None and draft.split is not None:
        transfer = kv_transfer.arguments(draft.split, side, version)
        own_args = {**own_args, TRANSFER: kv_transfer.over(transfer[TRANSFER], own_args.get(TRANSFER))}
        args, env = args | transfer, env | kv_transfer.environment(draft.split, version)
    args = _over(args, own_args)
    env = {name: str(value) for name, value in _over(env, draft.env).items()}
    deployment = replace(draft, args=args, env=env)
    try:
        rules.refuse(deployment)
    except ValueError as error:
        if engine.recipe == "published" and draft.split is None:
            then = published(draft.model, draft.layout).version
            today = "today's flags are those of engine.recipe=modern"
            raise ValueError(f"{error} (this recipe was published for vLLM {then}; {today})") from error
        raise
    _refuse_small(deployment, hardware)
    backend = backend_of(deployment)
    unread = backend and not kernels.is_known(backend, deployment.mla)
    unknown = kernels.unknown_backend(backend, deployment.mla) if unread else ""
    lines = [*base.notes, *rules.notes(deployment), *filter(None, [unknown])]
    if not vllm_flags.OLDEST <= version <= vllm_flags.NEWEST:
        known = f"{text(vllm_flags.OLDEST)} to {text(vllm_flags.NEWEST)}"
        lines.insert(0, f"vLLM {text(version)} is unknown here: the rules were read in {known}")
    return Recipe(args, env, tuple(lines), backend, unknown)


def _refuse_small(deployment: VllmDeployment, hardware: Hardware) -> None:
    """Raise ValueError for memory that vLLM would refuse when it starts.

    Nothing is refused for weights that vLLM quantises or offloads, whose size is unknown here, nor on a CPU.
    """
    model, args = deployment.model, deployment.args
    other_bytes = ("quantization", "cpu_offload_gb", "num_gpu_blocks_override", "kv_cache_memory_bytes")
    own = {deployment.checkpoint, None}
    if deployment.engine.kind == "vllm_cpu" or any(args.get(name) not in own for name in other_bytes):
        return
    dtype = str(args.get("kv_cache_dtype", "auto"))
    spec = SimulatedEngine(
        max_model_len=int(deployment.number("max_model_len", 1)),
        block_size=int(deployment.number("block_size", VLLM_BLOCK)),
        gpu_memory_utilization=deployment.number("gpu_memory_utilization", VLLM_MEMORY),
    )
    if isinstance(deployment.engine, EmulatedEngine):
        spec = replace(spec, activation_bytes=deployment.engine.activation_bytes)
    stored = replace(model, kv_cache="fp8" if dtype.startswith("fp8") else "bf16")
    refuse_small(spec, stored, hardware, deployment.layout, "engine.args.max_model_len")


def _words(engine: VllmEngine) -> tuple[dict[str, Any], dict[str, Any]]:
    """The user's arguments by their Python names, and environment as text; None removes one."""
    args: dict[str, Any] = {}
    for word, value in engine.args.items():
        name = argument_name(word)
        if name in args:
            raise ValueError(f"engine.args.{word} is given twice; use engine.args.{name} alone")
        if name.startswith("no_"):
            raise ValueError(f"engine.args.{word}: write engine.args.{name.removeprefix('no_')}=false")
        args[name] = value
    env: dict[str, Any] = {}
    for name, value in engine.env.items():
        if not (name.isascii() and name.isidentifier()):  # commands contain it
            raise ValueError(f"engine.env: {name!r} is no name of an environment variable")
        if isinstance(value, (dict, list)):
            raise ValueError(f"engine.env.{name} must be text or a number")
        env[name] = None if value is None else str(int(value)) if isinstance(value, bool) else str(value)
    return args, env


def _over(recipe: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**recipe, **own}.items() if value is not None}


def _base(draft: VllmDeployment) -> Recipe:
    """The preset for a deployment, without the user's own words."""
    engine, tp = draft.engine, draft.tp
    if engine.kind == "vllm_cpu":
        if engine.recipe == "published":
            raise ValueError("engine.recipe=published is for GPUs; leave it out with engine=vllm_cpu")
        return Recipe({"tensor_parallel_size": tp}, {})
    if engine.recipe == "published" and draft.split is None:  # else a rule refuses it
        recipe = published(draft.model, draft.layout)
        note = f"published for vLLM {recipe.version} ({recipe.source}): {recipe.remark}"
        return Recipe(dict(recipe.args), dict(recipe.env), (note,))
    return _modern(draft)


def _modern(draft: VllmDeployment) -> Recipe:
    """Today's preset, by the facts of the model, with its published settings that are still valid."""
    model, layout = draft.model, draft.layout
    preset, own = tables()["modern"], tables()["modern_models"].get(model.name, {"args": {}, "env": {}})
    env = {**preset["env"], **own["env"]} if draft.amd else {}
    args: dict[str, Any] = {"tensor_parallel_size": draft.tp}
    if layout.data_parallel > 1:
        args["data_parallel_size"] = layout.data_parallel
    if layout.expert_parallel:
        args["enable_expert_parallel"] = True
    if model.kv_cache == "fp8" and not draft.mla:
        args["kv_cache_dtype"] = "fp8"
    args |= {**preset["args"], **own["args"]}
    args["max_model_len"] = min(args["max_model_len"], model.max_context_tokens)
    if draft.checkpoint == "fbgemm_fp8" and draft.version >= DEPRECATED:
        args["allow_deprecated_quantization"] = True
    if draft.engine.server == "process":
        args["distributed_executor_backend"] = "mp"
    chosen = _kernels(replace(draft, args=args, env=_over(env, draft.env)))
    notes = chosen.notes if draft.amd else ("without AMD's own settings: this hardware is not AMD's",)
    return Recipe(args | chosen.args, env | chosen.env, notes)


def _kernels(planned: VllmDeployment) -> Recipe:
    """Settings of the attention kernels: AITER's by name, or without its MLA if that refuses the heads."""
    if not planned.aiter:
        return Recipe({}, {})
    if not planned.mla:
        # Before the argument existed, AITER's attention was what AITER=1 chose.
        known = vllm_flags.knows("attention_backend", planned.version)
        fits = known and planned.model.head_dim in AITER_HEAD_DIMS
        return Recipe({"attention_backend": "ROCM_AITER_FA"} if fits else {}, {})
    if planned.heads_per_gpu not in (16, 128) and planned.version < REFINED:
        note = f"without AITER's MLA, which takes 16 or 128 heads per GPU on {planned.vllm}"
        return Recipe({}, {"VLLM_ROCM_USE_AITER_MLA": "0"}, (note,))
    return Recipe({"block_size": 1} if planned.version <= PAPER else {}, {})


def check_request(
    recipe: Recipe, model: Model, request_tokens: int, prompt_tokens: int = 0
) -> tuple[str, ...]:
    """Notes on the prompts. Raises ValueError if the longest request, answer included, does not fit."""
    most = recipe.args.get("max_model_len", model.max_context_tokens)
    if isinstance(most, int) and request_tokens > most:
        raise ValueError(
            f"prompt and answer have up to {request_tokens} tokens but max_model_len is {most}; "
            f"raise engine.args.max_model_len (to {model.max_context_tokens} at most) or ask for less"
        )
    step = (recipe.prefill or recipe).args.get("max_num_batched_tokens")
    if isinstance(step, int) and prompt_tokens > step:
        return (
            f"prompts of {prompt_tokens} tokens are computed in chunks of {step} (max_num_batched_tokens)",
        )
    return ()


def command(recipe: Recipe, model: Model, model_path: str = "") -> list[str]:
    """The words after `vllm serve`: the model, or its folder and the name that clients use, and the flags."""
    named = [model_path, "--served-model-name", model.served_name] if model_path else [model.served_name]
    return [*named, *flags(recipe)]


def module_command(recipe: Recipe, model: Model, model_path: str = "") -> list[str]:
    """The words after `python -m vllm.entrypoints.openai.api_server`, which takes the model by a flag."""
    return ["--model", *command(recipe, model, model_path)]


def flags(recipe: Recipe) -> list[str]:
    """The arguments as flags: `--no-...` of what is false, JSON of mappings, several words of lists."""
    words: list[str] = []
    for name, value in recipe.args.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, Mapping):
            words += [f"--{flag}", json.dumps(value)]
        elif isinstance(value, (list, tuple)):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", str(value)]
    return words
