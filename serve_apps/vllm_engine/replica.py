"""Ray's LLM server, which also reports the replica that answered and its engine.

Imported in the cluster only, where vLLM is installed; knows nothing of how it is deployed.
"""

import os
import time
from typing import Any

import ray
import vllm
from ray import serve
from ray.llm._internal.serve.core.ingress.ingress import OpenAiIngress
from ray.llm._internal.serve.core.server.llm_server import LLMServer

from serve_apps.routing.loopback import stay_on_loopback
from serve_apps.vllm_engine.forwarding import StampedApp


class LLMServerReplica(LLMServer):  # type: ignore[misc]
    """One vLLM engine. Answers carry `x-replica-id`; GET /maxqps/replica tells what runs."""

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]  # Serve awaits it
        stay_on_loopback()
        began_s = time.monotonic()
        await super().__init__(*args, **kwargs)
        self._start_s = time.monotonic() - began_s

    async def __serve_build_asgi_app__(self) -> StampedApp:
        app = await super().__serve_build_asgi_app__()
        replica_id = serve.get_replica_context().replica_id.unique_id
        return StampedApp(app, replica_id, self._described())

    def _described(self) -> dict[str, Any]:
        """The running engine as plain data: versions, and vLLM's own resolved configuration."""
        config = self.engine._engine_client.vllm_config
        return {
            "pid": os.getpid(),
            "node_id": ray.get_runtime_context().get_node_id(),
            "vllm": vllm.__version__,
            "start_s": self._start_s,
            "engine": {
                part: _reported(getattr(config, f"{part}_config"), names) for part, names in REPORTED.items()
            },
        }


class LoopbackIngress(OpenAiIngress):  # type: ignore[misc]
    """Ray's OpenAI ingress, for requests that come through the Python proxy."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        stay_on_loopback()
        super().__init__(*args, **kwargs)


REPORTED = {
    "model": ("model", "dtype", "quantization", "max_model_len", "enforce_eager"),
    "cache": ("block_size", "gpu_memory_utilization", "cache_dtype", "enable_prefix_caching"),
    "parallel": ("tensor_parallel_size", "enable_expert_parallel", "distributed_executor_backend"),
    "scheduler": (
        "max_num_batched_tokens",
        "max_num_seqs",
        "async_scheduling",
        "enable_chunked_prefill",
        "long_prefill_token_threshold",
    ),
}
"""Fields of vLLM's resolved configuration that decide its speed; listed, because others may be secret."""


def _reported(config: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The named fields; a value that is not plain as text, one that this version lacks as None."""
    values = {name: getattr(config, name, None) for name in names}
    plain = (bool, int, float, str, type(None))
    return {name: value if isinstance(value, plain) else str(value) for name, value in values.items()}
