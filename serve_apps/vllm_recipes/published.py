"""Published settings for the MI325X and their form of today, as data with sources.

Two posts count as published: that of DigitalOcean and AMD on Character.ai (13 Jan 2026, "the blog") and
arXiv 2603.10031 ("the paper"). Arguments have vLLM's Python names; underscores in a flag are dashes to vLLM.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conf.specs.experiment import Layout, Model


@dataclass(frozen=True, slots=True)
class Published:
    """Settings that one text printed for a model and a layout; `remark` names what it did not print."""

    model: str
    tensor_parallel: int
    replicas_per_node: int
    expert_parallel: bool
    version: str
    source: str
    remark: str
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def fits(self, layout: Layout) -> bool:
        cut = (layout.tensor_parallel, layout.replicas_per_node, layout.expert_parallel)
        return cut == (self.tensor_parallel, self.replicas_per_node, self.expert_parallel)

    @property
    def cut(self) -> str:
        experts = f"/EP{self.tensor_parallel}" if self.expert_parallel else ""
        return f"{self.replicas_per_node} x TP{self.tensor_parallel}{experts}"


_BLOG_MODEL = "Qwen3-235B-A22B-Instruct-2507-FP8"
_BLOG_REMARK = (
    "the version is inferred: its variables and compilation keys last meant something in 0.11.0; "
    "expert parallelism of degree TP follows from the flag"
)
_BLOG_ENV = {
    "VLLM_USE_V1": "1",
    "SAFETENSORS_FAST_GPU": "1",
    "VLLM_ROCM_USE_AITER": "1",
    "VLLM_ROCM_USE_AITER_MOE": "1",
    "VLLM_USE_TRITON_FLASH_ATTN": "0",
}
_BLOG_ARGS: dict[str, Any] = {
    "enable_expert_parallel": True,
    "kv_cache_dtype": "fp8",
    "quantization": "fp8",
    "distributed_executor_backend": "mp",
    "trust_remote_code": True,
    "disable_log_requests": True,
    "enable_prefix_caching": True,
    "max_model_len": 32768,
    "max_num_batched_tokens": 32768,
    "gpu_memory_utilization": 0.90,
}

_PAPER_REMARK = (
    "how its 65536 tokens, 2048 sequences, 0.95 of memory and RCCL settings were passed is inferred"
)
_PAPER_SIZES: dict[str, Any] = {
    "gpu_memory_utilization": 0.95,
    "max_num_seqs": 2048,
    "max_num_batched_tokens": 65536,
}
"""Table 6, profile Maximum, and section 4.4."""
_PAPER_ENV = {
    "NCCL_MIN_NCHANNELS": "112",
    "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "FP",
    "VLLM_ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16": "1",
}


def _aiter(mha: int, mla: int, moe: int) -> dict[str, str]:
    """A row of table 3 with AITER on."""
    parts = {"": 1, "_MHA": mha, "_MLA": mla, "_MOE": moe}
    return {f"VLLM_ROCM_USE_AITER{part}": str(on) for part, on in parts.items()}


def _blog(tp: int, **more: Any) -> Published:
    """Settings of the blog for a layout of eight GPUs."""
    args, source = {"tensor_parallel_size": tp, **_BLOG_ARGS, **more}, f"the blog, DP{8 // tp}/TP{tp}/EP{tp}"
    cut = tp, 8 // tp, True
    return Published(_BLOG_MODEL, *cut, "0.11.0", source, _BLOG_REMARK, args, _BLOG_ENV)


def _paper(model: str, tp: int, args: Mapping[str, Any], env: Mapping[str, str]) -> Published:
    """Settings of a model from tables 11 and 3, over those of all models."""
    return Published(
        model=model,
        tensor_parallel=tp,
        replicas_per_node=1,
        expert_parallel=False,
        version="0.14.1",
        source="arXiv 2603.10031, tables 3, 6 and 11, section 4.4",
        remark=_PAPER_REMARK,
        args={"tensor_parallel_size": tp, **_PAPER_SIZES, **args},
        env={**_PAPER_ENV, **env},
    )


PUBLISHED = (
    _blog(8, compilation_config={"full_cuda_graph": False, "max_capture_size": 32768}),
    _blog(4),
    _paper(
        "DeepSeek-V3.2",
        8,
        {"block_size": 1, "quantization": "fp8"},
        {**_aiter(mha=0, mla=1, moe=1), "AITER_ENABLE_VSKIP": "0"},
    ),
    _paper(
        "Llama-3.1-405B-Instruct-FP8",
        8,
        {"block_size": 16, "quantization": "fp8", "max_model_len": 32768},
        _aiter(mha=1, mla=0, moe=0),
    ),
    _paper(
        "Qwen3-VL-235B-A22B",
        8,
        {"block_size": 16, "kv_offloading_backend": "native", "kv_offloading_size": 64},
        {**_aiter(mha=1, mla=0, moe=1), "VLLM_USE_TRITON_FLASH_ATTN": "0"},
    ),
    _paper(
        "Kimi-K2.5",
        4,
        {"block_size": 1},
        {"VLLM_ROCM_USE_AITER": "0", "VLLM_USE_TRITON_FLASH_ATTN": "0"},
    ),
)

PROFILES: dict[str, dict[str, Any]] = {
    "none": {},
    "low_latency": {"max_num_seqs": 256, "max_num_batched_tokens": 8192},
    "balanced": {"max_num_seqs": 512, "max_num_batched_tokens": 16384},
    "high_throughput": {"max_num_seqs": 1024, "max_num_batched_tokens": 32768},
    "maximum": {"max_num_seqs": 2048, "max_num_batched_tokens": 65536},
}
"""Table 6 of the paper without its --num-scheduler-steps, which vLLM 0.14.1 no longer had."""

MODERN_ARGS: dict[str, Any] = {
    "max_model_len": 32768,
    "max_num_batched_tokens": 32768,
    "gpu_memory_utilization": 0.90,
    "enable_prompt_tokens_details": True,
}
MODERN_ENV = {
    "VLLM_ROCM_USE_AITER": "1",
    "HIP_FORCE_DEV_KERNARG": "1",
    "TORCH_BLAS_PREFER_HIPBLASLT": "1",
    "NCCL_MIN_NCHANNELS": "112",
}
"""Our preset, untested on hardware: the published recipe without dead, redundant or default settings.

The variables are those of AMD's guide "vLLM V1 performance optimization" and of arXiv 2603.10031.
"""

_KEPT = {"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "FP"}
MODERN_OF: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "DeepSeek-V3.2": (_PAPER_SIZES, {**_KEPT, "AITER_ENABLE_VSKIP": "0"}),
    "Llama-3.1-405B-Instruct-FP8": (_PAPER_SIZES, _KEPT),
    "Qwen3-VL-235B-A22B": (
        {**_PAPER_SIZES, "kv_offloading_backend": "native", "kv_offloading_size": 64},
        _KEPT,
    ),
    "Kimi-K2.5": ({**_PAPER_SIZES, "trust_remote_code": True}, {**_KEPT, "VLLM_ROCM_USE_AITER": "0"}),
}
"""Published settings of a model that still mean the same, added to the preset.

Not published: Kimi-K2.5's tokeniser and image processor are code of the checkpoint (Moonshot's deployment
guide).
"""


def find(model: Model, layout: Layout) -> Published:
    """Published settings of the model and layout. Raises ValueError with the known ones if there are none."""
    of_model = [published for published in PUBLISHED if published.model == model.name]
    if not of_model:
        names = ", ".join(sorted({published.model for published in PUBLISHED}))
        raise ValueError(
            f"engine.recipe=published: there is none of {model.name}, only of {names}; use modern"
        )
    for published in of_model:
        if published.fits(layout):
            return published
    cuts = " or ".join(published.cut for published in of_model)
    raise ValueError(
        f"engine.recipe=published: {model.name} was published as {cuts}, not as layout {layout.name}; choose "
        "a layout of that kind or engine.recipe=modern"
    )
