"""Ray's LLM servers, which also report the replica that answered and its engine; for the cluster, where vLLM
is."""

import asyncio
import os
import time
from typing import Any

import ray
import vllm
from ray import serve
from ray.serve.llm.deployment import DPServer, LLMServer, PDDecodeServer, PDPrefillServer
from ray.serve.llm.ingress import OpenAiIngress

from conf import ray_patches
from serve_apps.routing.asgi import DESCRIPTION_PATH, ReplicaApp
from serve_apps.routing.serve_routers import stay_on_loopback

PREFILL_FACTS_S = 5.0
"""Longest wait for the facts of a prefill engine; the client of the page waits longer."""


class _Reporting:
    """Mixin that adds reporting to Ray's server; list it first among the bases."""

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]  # Serve awaits it
        stay_on_loopback()
        began_s = time.monotonic()
        await super().__init__(*args, **kwargs)  # type: ignore[misc]
        self._start_s = time.monotonic() - began_s

    async def __serve_build_asgi_app__(self) -> ReplicaApp:
        app = await super().__serve_build_asgi_app__()  # type: ignore[misc]
        replica_id = serve.get_replica_context().replica_id.unique_id
        return ReplicaApp(app, replica_id, {DESCRIPTION_PATH: self.page})

    async def page(self) -> dict[str, Any]:
        """The page at `DESCRIPTION_PATH`."""
        return await self.described()

    async def described(self) -> dict[str, Any]:
        """The running engine as plain data: versions, and vLLM's own resolved configuration."""
        config = ray_patches.vllm_config(self)
        return {
            "pid": os.getpid(),
            "node_id": ray.get_runtime_context().get_node_id(),
            "vllm": vllm.__version__,
            "start_s": self._start_s,
            "engine": {
                part: _reported(getattr(config, f"{part}_config"), names) for part, names in REPORTED.items()
            },
        }


class LLMServerReplica(_Reporting, LLMServer):  # type: ignore[misc]
    """One vLLM engine. Answers carry `x-replica-id`; GET /maxqps/replica describes the engine."""


class PrefillServerReplica(_Reporting, PDPrefillServer):  # type: ignore[misc]
    """One vLLM engine that computes prompts for the decode engines, its only clients.

    They request one token. Ray 2.60 leaves the client's `min_tokens` in that request, and vLLM answers 400.
    """

    async def chat(self, request: Any, raw_request_info: Any = None) -> Any:
        return await super().chat(_with_one_token(request), raw_request_info)

    async def completions(self, request: Any, raw_request_info: Any = None) -> Any:
        return await super().completions(_with_one_token(request), raw_request_info)


class DecodeServerReplica(_Reporting, PDDecodeServer):  # type: ignore[misc]
    """One vLLM engine that answers, as `LLMServerReplica`; has prompts computed by a prefill engine."""

    async def page(self) -> dict[str, Any]:
        """Also the facts of one of the prefill engines, which no HTTP request reaches."""
        facts = self._prefill_handle.options(stream=False).described.remote()
        try:
            prefill = await asyncio.wait_for(facts, PREFILL_FACTS_S)
        except TimeoutError:
            prefill = None
        return await super().page() | {"prefill": prefill}


def _with_one_token(request: Any) -> Any:
    if getattr(request, "min_tokens", 0):
        request.min_tokens = min(request.min_tokens, 1)
    return request


class LLMServerRank(LLMServerReplica, DPServer):  # type: ignore[misc]
    """One data-parallel rank of a vLLM engine; Serve places and restarts the ranks of a group together."""


class LoopbackIngress(OpenAiIngress):  # type: ignore[misc]
    """Ray's OpenAI ingress, for requests that come through the Python proxy."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        stay_on_loopback()
        super().__init__(*args, **kwargs)


class LoopbackRouter(ray_patches.llm_router()):  # type: ignore[misc]
    """Ray's deployment that HAProxy asks for a replica, as the engines' own router chooses it."""

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]  # Serve awaits it
        stay_on_loopback()
        await super().__init__(*args, **kwargs)


REPORTED = {
    "model": ("model", "dtype", "quantization", "max_model_len", "enforce_eager"),
    "cache": ("block_size", "gpu_memory_utilization", "cache_dtype", "enable_prefix_caching"),
    "parallel": (
        "tensor_parallel_size",
        "data_parallel_size",
        "enable_expert_parallel",
        "distributed_executor_backend",
    ),
    "scheduler": (
        "max_num_batched_tokens",
        "max_num_seqs",
        "async_scheduling",
        "enable_chunked_prefill",
        "long_prefill_token_threshold",
    ),
    "kv_transfer": ("kv_connector", "kv_role"),
}
"""Fields of vLLM's resolved configuration that decide its speed; listed, because others may be secret."""


def _reported(config: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The named fields; a value that is not plain as text, one that this version or engine lacks as None."""
    values = {name: getattr(config, name, None) for name in names}
    plain = (bool, int, float, str, type(None))
    return {name: value if isinstance(value, plain) else str(value) for name, value in values.items()}
