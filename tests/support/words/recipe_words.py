"""The words of the deployments that the tests of recipes are about, and what they resolve to."""

from collections.abc import Sequence
from functools import cache

from conf import load
from conf.specs.experiment import Experiment, VllmEngine
from serve_apps.vllm_recipes import recipes
from serve_apps.vllm_recipes.recipes import Recipe

NEWEST = "0.33.0"
QWEN = "model=qwen3_235b_a22b_fp8"
VISION = ("model=qwen3_vl_235b_bf16", "layout=dp1_tp8")
DEEPSEEK = ("model=deepseek_v32_fp8", "layout=dp1_tp8")
KIMI = ("model=kimi_k25_int4", "layout=dp1_tp4")
LLAMA = ("model=llama31_405b_fp8", "layout=dp1_tp8")
TP4 = "layout=dp2_tp4_ep4"
TP8 = "layout=dp1_tp8_ep8"
PROCESS = "engine.server=process"
SPLIT = "layout=1p1d_tp4_ep4"
NIXL = "layout.connector=nixl"
HAND = (PROCESS, "engine.recipe=published")


def experiment(words: Sequence[str]) -> Experiment:
    """The experiment of `words`, by default on engine=vllm."""
    engine = () if any(word.startswith("engine=") for word in words) else ("engine=vllm",)
    return loaded((*engine, *words))


loaded = cache(load)


def resolve(words: Sequence[str], version: str = NEWEST) -> Recipe:
    asked = experiment(words)
    assert isinstance(asked.engine, VllmEngine)
    return recipes.resolve(asked.engine, asked.model, asked.layout, version, asked.hardware)


def env(name: str, value: object) -> str:
    return f"engine.env.{name}={value}"


CPU = ("engine=vllm_cpu", "model=tiny_qwen3_moe", "workload=smoke")
MODERN_ENV = {
    "VLLM_ROCM_USE_AITER": "1",
    "HIP_FORCE_DEV_KERNARG": "1",
    "TORCH_BLAS_PREFER_HIPBLASLT": "1",
    "NCCL_MIN_NCHANNELS": "112",
}


def routed(routing: str) -> list[str]:
    """Words of a routing, with a workload that it takes."""
    text = "workload.prompt=text"
    workload = {"prefix_affinity": text, "kv_aware": text, "per_node": "workload=chat_5600_140"}
    return [f"routing={routing}", workload.get(routing, "workload=chat_sessions")]
