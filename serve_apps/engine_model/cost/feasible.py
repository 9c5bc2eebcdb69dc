"""Refuses layouts whose engines cannot hold a model: its experts, its weights and one longest request."""

from conf.io.check import require
from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine
from serve_apps.engine_model.cost.architecture import kv_blocks


def sides(layout: Layout) -> list[Layout]:
    """The prefill and the decode engines of a split layout; else the layout itself."""
    return [side for side in (layout.prefill_side, layout.decode_side) if side is not None]


def refuse_experts(model: Model, layout: Layout) -> None:
    """Raise ValueError for expert parallelism of a model without experts, or of unequal numbers of them."""
    for side in sides(layout):
        if not side.expert_parallel:
            continue
        gpus = side.gpus_per_replica
        require(
            model.experts > 0,
            f"layout {side.name} has expert parallelism but {model.name} is dense: it has no experts to "
            "share out; use a layout without, such as layout=dp1_tp8, or set layout.expert_parallel=false",
        )
        require(
            model.experts % gpus == 0,
            f"layout {side.name}: {model.experts} experts of {model.name} on {gpus} GPUs: each GPU needs as "
            "many as the others; choose another number of GPUs",
        )


def refuse_small(
    spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout, context: str
) -> None:
    """Raise ValueError for engines whose memory vLLM would refuse.

    vLLM does not start unless its KV holds one request of `max_model_len` tokens (kv_cache_utils.py,
    `_check_enough_kv_cache_memory`). `context` is the key that sets that length.
    """
    assumed = f"{spec.activation_bytes / 1e9:g} GB of activations (assumed)"
    for side in sides(layout):
        tokens = kv_blocks(spec, model, hardware, side) * spec.block_size
        require(
            spec.num_gpu_blocks is not None or tokens >= spec.max_model_len,
            f"layout {side.name}: {hardware.name} has KV for {tokens} tokens beside the weights of "
            f"{model.name} and {assumed}, but one request may have {spec.max_model_len}, and vLLM would not "
            f"start; choose a larger layout, or lower {context}",
        )
