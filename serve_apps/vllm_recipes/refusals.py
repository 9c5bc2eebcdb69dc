"""Refusals and notes for a real vLLM: all rules, applied to one deployment.

Rules about servers, devices and sizes are here, those about models in `model_rules`, those about split
layouts in `transfer_rules`; `vllm_flags` has the flags and variables that only some versions know.
"""

from collections.abc import Mapping
from math import inf

from serve_apps.vllm_recipes import vllm_flags
from serve_apps.vllm_recipes.model_rules import NOTED_MODELS, REFUSED_MODELS
from serve_apps.vllm_recipes.rules import RecipeRule, VllmDeployment
from serve_apps.vllm_recipes.transfer_rules import NOTED_TRANSFERS, REFUSED_TRANSFERS

OURS = ("model", "model_tag", "served_model_name", "host", "port", "uds")
DEVICES = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

REFUSED = {
    **REFUSED_TRANSFERS,
    **REFUSED_MODELS,
    "executor": RecipeRule(
        lambda d: (
            d.engine.server == "ray_llm"
            and d.args.get("distributed_executor_backend", d.forced_executor) != d.forced_executor
        ),
        "distributed_executor_backend={d.args[distributed_executor_backend]} with engine.server=ray_llm: "
        "Ray's LLM library forces the {d.forced_executor} executor here; set engine.server=process, or "
        "leave it out",
        "vllm_models.py of ray 2.60",
    ),
    "accelerator-type": RecipeRule(
        lambda d: d.engine.kind != "vllm" and bool(d.engine.accelerator_type),
        "engine.accelerator_type={d.engine.accelerator_type} with engine={d.engine.kind}: it has no "
        "accelerator, and Ray would wait for a node that does; leave it out; engine.node_resource chooses "
        "nodes",
        "accelerators.py of ray 2.60",
    ),
    "ours-to-set": RecipeRule(
        lambda d: any(d.has(name) for name in OURS),
        "engine.args.model, served_model_name, host or port: the deployment sets names, addresses and "
        "ports; leave it out; see engine.model_path and model.served_name",
        "ours; ray.serve.llm 2.60 refuses the names too",
    ),
    "plain-numbers": RecipeRule(
        lambda d: bool(d.texts),
        "engine.args.{d.texts[0]} is text: only vLLM's command line reads such a number; Ray's library "
        "hands it on as it is; write the number",
        "vllm_models.py of ray 2.60",
    ),
    "metrics-on": RecipeRule(
        lambda d: d.has("disable_log_stats"),
        "engine.args.disable_log_stats: the run reads vLLM's own metrics; leave it out",
        "ours",
    ),
    "rocr-alone": RecipeRule(
        lambda d: "ROCR_VISIBLE_DEVICES" in d.env and "HIP_VISIBLE_DEVICES" not in d.env,
        "ROCR_VISIBLE_DEVICES without HIP_VISIBLE_DEVICES: Ray raises RuntimeError; set "
        "engine.env.HIP_VISIBLE_DEVICES instead",
        "amd_gpu.py of ray 2.60",
    ),
    "hip-cuda-differ": RecipeRule(
        lambda d: (
            "HIP_VISIBLE_DEVICES" in d.env
            and d.env.get("CUDA_VISIBLE_DEVICES", d.env["HIP_VISIBLE_DEVICES"])
            != d.env["HIP_VISIBLE_DEVICES"]
        ),
        "HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES differ: ROCm reads both; set only HIP_VISIBLE_DEVICES",
        "platforms/rocm.py of 0.32.0",
    ),
    "devices-shared": RecipeRule(
        lambda d: d.layout.replicas_per_node > 1 and any(name in d.env for name in DEVICES),
        "visible devices for all {d.layout.replicas_per_node} replicas of a node: they would share the "
        "same GPUs; leave it out: each replica is given its own",
        "ours",
    ),
    "unknown-variable": RecipeRule(
        lambda d: d.has("fail_on_environ_validation") and bool(d.unknown_variables),
        "fail_on_environ_validation with {d.unknown_variables[0]}: {d.vllm} does not know the variable "
        "and would not start; leave one of the two out",
        "envs.py of 0.29.0",
    ),
    "step-budget": RecipeRule(
        lambda d: d.number("max_num_batched_tokens", inf) < d.number("max_num_seqs", 0),
        "max_num_batched_tokens is below max_num_seqs={d.args[max_num_seqs]}: a step needs a token for "
        "each sequence; raise one or lower the other",
        "config/scheduler.py of 0.29.0 and 0.32.0",
    ),
    "context": RecipeRule(
        lambda d: d.number("max_model_len", 0) > d.model.max_context_tokens,
        "max_model_len={d.args[max_model_len]} is beyond {d.model.max_context_tokens} tokens: "
        "{d.model.name} was not made for more; lower it",
        "config.json of the checkpoint",
    ),
}


NOTED = {**NOTED_MODELS, **NOTED_TRANSFERS}


def messages(rules: Mapping[str, RecipeRule], deployment: VllmDeployment) -> list[str]:
    """The messages of the rules that apply to a deployment."""
    return [rule.message.format(d=deployment) for rule in rules.values() if rule.when(deployment)]


def refuse(deployment: VllmDeployment) -> None:
    """Raise ValueError with the first contradiction in one line: what, why and the remedy."""
    lines = messages(REFUSED, deployment) + vllm_flags.rejected(deployment.args, deployment.version)
    lines += filter(None, [vllm_flags.misspelt(deployment.args, deployment.version)])
    if lines:
        raise ValueError(lines[0])


def notes(deployment: VllmDeployment) -> list[str]:
    """Lines about a deployment that is served nevertheless."""
    ignored = vllm_flags.ignored(deployment.args, deployment.env, deployment.version)
    read = vllm_flags.text(vllm_flags.NEWEST_READ)
    newer = [
        f"engine.args.{name} is no argument of vLLM {read}, the newest that was read: vLLM's parser judges it"
        for name in vllm_flags.unread(deployment.args)
    ]
    return ignored + newer + messages(NOTED, deployment)
