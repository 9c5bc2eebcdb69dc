"""The attention backend that vLLM would choose for a deployment; knows no speed."""

from serve_apps.vllm_recipes.model_rules import PAPER, REFINED
from serve_apps.vllm_recipes.rules import VllmDeployment, is_on

UNNAMED = "of vLLM's own choice"


def backend_of(asked: VllmDeployment) -> str:
    """vLLM's name of the backend, or `UNNAMED`; empty where no figure tells backends apart.

    That is so for latent attention, GPUs of another maker and a CPU. Up to 0.14.1 the environment chooses
    (rocm.py of 0.14); from 0.29 on ROCM_ATTN is the default; versions between are unchecked.
    """
    early = asked.version <= PAPER
    named = asked.args.get("attention_backend") or (early and asked.env.get("VLLM_ATTENTION_BACKEND"))
    if named:
        return str(named).upper()
    if asked.mla or not asked.amd or asked.engine.kind == "vllm_cpu":
        return ""
    if asked.version >= REFINED:
        return "ROCM_ATTN"
    return _by_environment(asked) if early else UNNAMED


def _by_environment(asked: VllmDeployment) -> str:
    def chosen(name: str, otherwise: str) -> bool:
        return is_on(asked.env.get(name, otherwise))

    if asked.aiter and chosen("VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION", "0"):
        return "ROCM_AITER_UNIFIED_ATTN"
    if asked.aiter and chosen("VLLM_ROCM_USE_AITER_MHA", "1"):
        return "ROCM_AITER_FA"
    return "ROCM_ATTN" if chosen("VLLM_V1_USE_PREFILL_DECODE_ATTENTION", "0") else "TRITON_ATTN"
