"""vLLM's platform for GPUs that do not exist; it refuses what they cannot emulate. vLLM imports it in the
middle of its own configuration's import, so that nothing else of vLLM can be."""

import os
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.platforms.interface import Platform, PlatformEnum

from serve_apps.vllm_emulated.platform_plugin import CONNECTORS, GPU_BYTES, MI325X_BYTES

EXECUTOR = "serve_apps.vllm_emulated.executor.EmulatedExecutor"
WORKER = "serve_apps.vllm_emulated.platform.NoWorker"


class NoWorker:
    """The worker class in vLLM's configuration; vLLM reads only its signatures."""

    def profile(self, is_start: bool = True, profile_prefix: str | None = None) -> None:
        """There is nothing to profile."""


class EmulatedPlatform(Platform):  # type: ignore[misc]  # vLLM has no types here
    """GPUs that exist in name only: eight, with FP8, and the memory that `GPU_BYTES` gives."""

    _enum = PlatformEnum.OOT
    device_name = "emulated"
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return cls.device_name

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return int(os.environ.get(GPU_BYTES, MI325X_BYTES))

    @classmethod
    def device_count(cls) -> int:
        return 8

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def supports_fp8(cls) -> bool:
        return True

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        return True

    @classmethod
    def import_kernels(cls) -> None:
        """Load the kernels of a CPU build for this very CPU, as vLLM's own CPU platform chooses them.

        The inherited choice is always `vllm._C`, which in a CPU build is for AVX-512: an illegal instruction
        elsewhere. Nothing here computes with kernels; vLLM's modules only look them up.
        """
        from vllm.platforms.cpu import CpuPlatform  # not importable yet when this module is imported

        CpuPlatform.import_kernels()

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Set our executor in vLLM's final configuration. Raises ValueError for what is not emulated."""
        _refuse(vllm_config)
        parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
        parallel.distributed_executor_backend = EXECUTOR
        if parallel.worker_cls == "auto":
            parallel.worker_cls = WORKER
        if cache.block_size is None:
            cache.block_size = 16

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        """Refuse what would need a model's answer. Raises what vLLM answers with status 400."""
        needs = {
            "logprobs": getattr(params, "logprobs", None) is not None,
            "prompt_logprobs": getattr(params, "prompt_logprobs", None) is not None,
            "structured outputs": getattr(params, "structured_outputs", None) is not None,
        }
        for name, is_needed in needs.items():
            if is_needed:
                raise VLLMValidationError(f"emulated GPUs compute no {name}; leave them out of the request")


def _refuse(config: Any) -> None:
    """Raise ValueError for an engine whose steps the step-time model does not know."""
    model, parallel, transfer = config.model_config, config.parallel_config, config.kv_transfer_config
    unknown = {
        "a speculative decoding config": config.speculative_config is not None,
        "LoRA": config.lora_config is not None,
        "KV transfer or offloading, but between the engines of a split layout": transfer is not None
        and transfer.kv_connector_module_path != CONNECTORS,
        "pipeline_parallel_size above 1": parallel.pipeline_parallel_size > 1,
        "data_parallel_size above 1 (use a layout with more replicas)": parallel.data_parallel_size > 1,
        "a multimodal model": model is not None and model.is_multimodal_model,
        "latent attention (MLA)": model is not None and model.use_mla,
        "a hybrid KV cache": model is not None and model.is_hybrid,
    }
    for what, is_used in unknown.items():
        if is_used:
            raise ValueError(
                f"engine=vllm_emulated does not emulate {what}; leave it out, or use engine=simulated"
            )
