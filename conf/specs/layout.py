"""The spec of a layout: the replicas that share the GPUs of a node."""

from dataclasses import dataclass
from typing import Literal

from conf.io.check import require_at_least_one


@dataclass(frozen=True, slots=True)
class Layout:
    """Independent replicas on the GPUs of a node (never vLLM's data parallelism).

    `quick_reduce` is the codec of large all-reduces between the GPUs of a replica (ROCm only); a real vLLM
    takes it from VLLM_ROCM_QUICK_REDUCE_QUANTIZATION.
    """

    name: str
    tensor_parallel: int
    replicas_per_node: int
    expert_parallel: bool
    quick_reduce: Literal["none", "int8", "int6", "int4"] = "none"

    def __post_init__(self) -> None:
        require_at_least_one("layout.", self, "tensor_parallel", "replicas_per_node")
