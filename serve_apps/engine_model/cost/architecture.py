"""Parameters, FLOPs and bytes of a model, from its config.json, without norms, biases, multi-token prediction
and vision towers. A pair is one new token attending to one token of its context."""

import math
from typing import NamedTuple

from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine

_BF16_BYTES = 2.0
_FP8_BLOCK_BYTES = 1 + 4 / (128 * 128)
"""An fp8 weight and its share of the fp32 scale of a 128 x 128 block."""
_INDEX_BLOCK = 128
"""Values of an indexer's key that share an fp32 scale; fp8 whatever the KV is (vLLM, deepseek_v2.py)."""


class Weights(NamedTuple):
    """Weights of one sort in all layers, and the bytes of each."""

    parameters: int
    bytes_each: float


def expert_layers(model: Model) -> int:
    """Layers with routed experts; the others are dense."""
    return model.layers - model.first_dense if model.experts else 0


def sorts(model: Model) -> dict[str, Weights]:
    """All weights of a model by their sort.

    `latent` are MLA's projections to its low-rank queries and to the latent, and the indexer, which every GPU
    holds and computes whole; all others are cut.
    """
    sparse, expert = expert_layers(model), 3 * model.hidden * model.expert_intermediate
    ffn, head = 3 * model.hidden * model.intermediate, model.vocab * model.hidden
    width, heads = model.heads * model.head_dim, model.index_heads * model.index_head_dim
    if model.kv_lora_rank:
        down = model.hidden * (model.q_lora_rank + model.kv_lora_rank + model.rope_dim)
        queries = (model.q_lora_rank or model.hidden) * (width + model.heads * model.rope_dim)
        attention = queries + model.kv_lora_rank * 2 * width + width * model.hidden
    else:
        down, attention = 0, model.hidden * (2 * width + 2 * model.kv_heads * model.head_dim)
    if heads:
        down += model.q_lora_rank * heads + model.hidden * (model.index_head_dim + model.index_heads)
    quantised = _quantised_bytes(model)
    each = _BF16_BYTES if model.weights == "int4_experts" else quantised
    kept = model.layers if model.bf16_attention else model.bf16_layers
    return {
        "latent": Weights(model.layers * down, _BF16_BYTES if model.bf16_attention else each),
        "attention": Weights((model.layers - kept) * attention, each),
        "bf16 attention": Weights(kept * attention, _BF16_BYTES),
        "ffn": Weights((model.layers - sparse - model.bf16_layers) * ffn, each),
        "bf16 ffn": Weights(model.bf16_layers * ffn, _BF16_BYTES),
        "shared experts": Weights(sparse * model.shared_experts * expert, each),
        "experts": Weights(sparse * model.experts * expert, quantised),
        "router": Weights(sparse * model.hidden * model.experts, _BF16_BYTES),
        "lm_head": Weights(head, _BF16_BYTES),
        "embedding": Weights(head, _BF16_BYTES),
    }


def per_gpu(total: float, whole: float, gpus: int) -> float:
    """The share of each GPU in a total: all of the `whole` part and a slice of the rest."""
    return (total - whole) / gpus + whole


def total_parameters(model: Model) -> int:
    return sum(weights.parameters for weights in sorts(model).values())


def picked_parameters(model: Model) -> int:
    """Parameters of the routed experts that a token is multiplied with."""
    return expert_layers(model) * model.experts_per_token * 3 * model.hidden * model.expert_intermediate


def active_parameters(model: Model) -> int:
    """Parameters a token is multiplied with, lm_head included."""
    weights = sorts(model)
    unused = weights["embedding"].parameters + weights["experts"].parameters
    return total_parameters(model) - unused + picked_parameters(model)


def linear_flop_per_token(model: Model) -> int:
    """Matrix multiplications of one token without the lm_head, which only emitting tokens pass."""
    return 2 * (active_parameters(model) - sorts(model)["lm_head"].parameters)


def linear_flop_per_gpu(model: Model, gpus: int) -> float:
    """The part of `linear_flop_per_token` that each of `gpus` computes."""
    return per_gpu(linear_flop_per_token(model), 2 * sorts(model)["latent"].parameters, gpus)


def bf16_flop_per_gpu(model: Model, gpus: int) -> float:
    """Products of one token on each of `gpus` with layers that stay in bf16 where others are quantised."""
    weights = sorts(model)
    whole = weights["latent"].parameters if model.bf16_attention else 0
    kept = whole + weights["bf16 attention"].parameters + weights["bf16 ffn"].parameters
    return per_gpu(2 * kept, 2 * whole, gpus)


def attention_flop_per_pair(model: Model) -> float:
    """Score and weighted sum of one pair in all layers; MLA's head width is the mean of both."""
    return 4 * model.heads * (model.head_dim + model.rope_dim / 2) * model.layers


def index_flop_per_pair(model: Model) -> int:
    """Scores of one pair by the indexers of all layers, which every GPU computes whole, in fp8."""
    return 2 * model.index_heads * model.index_head_dim * model.layers


def weight_bytes(model: Model) -> int:
    """Bytes of the whole checkpoint in memory, over all GPUs, scales included."""
    return round(_bytes(model, *sorts(model)))


def routed_bytes(model: Model) -> float:
    """Bytes of all routed experts, which `weight_bytes` counts."""
    return _bytes(model, "experts")


def step_bytes_per_gpu(model: Model, gpus: int) -> float:
    """Bytes every step reads on each of `gpus`, whatever its tokens: all but experts and embedding."""
    read = [name for name in sorts(model) if name not in ("experts", "embedding")]
    return per_gpu(_bytes(model, *read), _bytes(model, "latent"), gpus)


def weight_bytes_on_gpu(model: Model, layout: Layout) -> float:
    """Bytes of the weights on each GPU of `layout`.

    Each data-parallel rank holds attention, dense and shared layers and the embeddings whole; the routed
    experts are cut over the GPUs of all ranks (vLLM, FusedMoEParallelConfig).
    """
    if layout.data_parallel == 1:
        return per_gpu(weight_bytes(model), _bytes(model, "latent"), layout.tensor_parallel)
    routed = routed_bytes(model)
    rest = per_gpu(weight_bytes(model) - routed, _bytes(model, "latent"), layout.tensor_parallel)
    return rest + routed / layout.gpus_per_replica


def kv_bytes_per_token(model: Model, tensor_parallel: int) -> int:
    """KV bytes of one token on each GPU.

    KV heads are split over the GPUs and replicated beyond their number; MLA's latent is copied to
    every GPU (fp8: 4-byte scales per 128 values and a bf16 rope part, 656 bytes per layer), and so is the
    indexer's key beside it.
    """
    if model.kv_lora_rank:
        latent, rope = model.kv_lora_rank, model.rope_dim
        per_layer = latent + latent // 32 + 2 * rope if model.kv_cache == "fp8" else 2 * (latent + rope)
        per_layer += model.index_head_dim + 4 * math.ceil(model.index_head_dim / _INDEX_BLOCK)
    else:
        heads = math.ceil(model.kv_heads / tensor_parallel)
        per_layer = 2 * heads * model.head_dim * (1 if model.kv_cache == "fp8" else 2)
    return model.layers * per_layer


def kv_blocks(spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout) -> int:
    """The `num_gpu_blocks` of `spec`, or those that fit beside weights and activations on each GPU.

    They are those of one rank where `layout` has several. Raises ValueError where not even one does.
    """
    if spec.num_gpu_blocks is not None:
        return spec.num_gpu_blocks
    usable = spec.gpu_memory_utilization * hardware.hbm_bytes
    weights = weight_bytes_on_gpu(model, layout)
    block_bytes = spec.block_size * kv_bytes_per_token(model, layout.tensor_parallel)
    left = usable - weights - spec.activation_bytes
    if left < block_bytes:
        ranks = f"DP{layout.data_parallel}/" if layout.data_parallel > 1 else ""
        raise ValueError(
            f"{model.name} does not fit {hardware.name} at {ranks}TP{layout.tensor_parallel}: weights "
            f"{weights / 1e9:.1f} GB + activations {spec.activation_bytes / 1e9:.1f} GB per GPU leave no KV "
            f"block of {usable / 1e9:.1f} GB usable; choose a larger tensor_parallel, smaller weights or "
            "hardware with more memory"
        )
    return int(left // block_bytes)


def _bytes(model: Model, *names: str) -> float:
    weights = sorts(model)
    return sum(weights[name].parameters * weights[name].bytes_each for name in names)


def _quantised_bytes(model: Model) -> float:
    """A quantised weight and its share of a scale: fp32 of an fp8 block, bf16 of a group of int4 weights."""
    scale = 2 / model.int4_group if model.int4_group else 0.0
    return {"bf16": _BF16_BYTES, "fp8": _FP8_BLOCK_BYTES}.get(model.weights, 0.5 + scale)
