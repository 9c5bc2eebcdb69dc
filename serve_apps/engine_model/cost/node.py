"""What a node can do at most, and where its busy time goes, by the step time alone."""

from collections.abc import Mapping

from conf.io.check import require
from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine, Workload
from conf.specs.model import KernelRatio
from serve_apps.engine_model.cost import architecture
from serve_apps.engine_model.cost.architecture import kv_blocks
from serve_apps.engine_model.cost.links import TransferSeconds
from serve_apps.engine_model.cost.step_time import Batch, roofline

GUESS_BATCH = 64
"""Decoding sequences in the guess (the concurrency of the Character.ai post)."""
PREFILL = "prefill_"
"""The prefix of the sums of engines that only compute prompts."""


def shares(
    spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout, work: Mapping[str, float]
) -> dict[str, float]:
    """Shares of the busy time by term of the step time, from the sums of `Times.work`.

    Terms that are not linear in them (experts touched, quick reduce, noise) are one rest. Of a split node
    both sides' engines count, with the fields of `PREFILL` for those that compute prompts.
    """
    if layout.prefill_side is not None:
        prompts = {k.removeprefix(PREFILL): value for k, value in work.items() if k.startswith(PREFILL)}
        known = {"decode": (layout.decode_side, work), "prefill": (layout.prefill_side, prompts)}
        busy_s = sum(own["busy_s"] for _, own in known.values())
        return {
            f"{name} of {side} engines": share * own["busy_s"] / busy_s
            for side, (engines, own) in known.items()
            for name, share in shares(spec, model, hardware, engines, own).items()
        }
    if not work["busy_s"] > 0:
        return {}
    cost = roofline(model, hardware, layout, spec.kernel_ratio)
    terms: Mapping[str, float] = {
        "launch": cost.launch_s * work["steps"],
        "weight read": cost.weight_read_s * work["steps"],
        "decode GEMM": cost.decode_gemm_token_s * work["decode_tokens"],
        "prefill GEMM": cost.prefill_gemm_token_s * work["prefill_tokens"],
        "KV read": cost.context_token_s * work["context_tokens"],
        "attention": cost.attention_pair_s * work["attention_pairs"],
        "host": cost.host_sequence_s * work["sequences"],
    }
    if cost.quick_reduce_tokens == float("inf"):
        tokens = work["decode_tokens"] + work["prefill_tokens"]
        terms = {**terms, "all-reduce": cost.all_reduce_token_s * tokens}
    rest = max(0.0, work["busy_s"] - sum(terms.values()))
    return {name: seconds / work["busy_s"] for name, seconds in {**terms, "experts and rest": rest}.items()}


def peaks(
    spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout
) -> tuple[float, float | None, float, float]:
    """A node's tokens of KV and peak FLOP/s, and the FLOP that a token and a pair of tokens need.

    The peak is that of the weights' type, None where it is unknown; int4 experts compute in bf16. Of a split
    node the KV is that of the engines that decode, and the peak that of all.
    """
    decode = layout.decode_side
    blocks = kv_blocks(spec, model, hardware, decode) * decode.replicas_per_node * decode.data_parallel
    peak = hardware.fp8_flop_per_s if model.weights == "fp8" else hardware.bf16_flop_per_s
    gpus = sum(side.replicas_per_node * side.gpus_per_replica for side in sides(layout))
    return (
        float(blocks * spec.block_size),
        None if peak is None else peak * gpus,
        float(architecture.linear_flop_per_token(model)),
        architecture.attention_flop_per_pair(model),
    )


def guess_qps(
    workload: Workload, model: Model, hardware: Hardware, layout: Layout, kernels: KernelRatio | None = None
) -> float | None:
    """Requests per second and node by the roofline alone, in prefill and full decode batches only.

    The share of prompts that `workload.prefix_hit` repeats counts as cached. Of a split node the slowest of
    prefill engines, links and decode engines counts. None where a figure of the hardware that is needed is
    unknown.
    """
    mean_in, mean_out = round(workload.prompt_tokens), workload.output_tokens.mean
    shared = round(workload.prefix_hit * mean_in)
    try:
        prefill_s, batch_s = (
            _guess_s(model, hardware, side, mean_in, shared, kernels)
            for side in (layout.prefill_side or layout, layout)
        )
    except ValueError:
        return None
    engines = layout.replicas_per_node
    if layout.prefill is None:
        return engines / (prefill_s[0] + mean_out * batch_s[1] / GUESS_BATCH)
    link_s = TransferSeconds.of(model, layout).work_s(mean_in - shared)
    return min(
        layout.prefill.per_node / prefill_s[0],
        engines / (mean_out * batch_s[1] / GUESS_BATCH),
        engines / link_s,
    )


def _guess_s(
    model: Model, hardware: Hardware, side: Layout, mean_in: int, shared: int, kernels: KernelRatio | None
) -> tuple[float, float]:
    """Seconds of an engine for a prompt alone, and for a token each of a full batch."""
    step, prefill = roofline(model, hardware, side, kernels), Batch()
    prefill.add_chunk(mean_in - shared, shared)
    decode = Batch(decode_tokens=GUESS_BATCH, context_tokens=GUESS_BATCH * mean_in, sequences=GUESS_BATCH)
    return step.duration_s(prefill), step.duration_s(decode)


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
