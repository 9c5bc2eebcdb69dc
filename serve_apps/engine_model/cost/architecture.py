"""Parameters, FLOPs and bytes of a model, from its config.json, without norms, biases, multi-token prediction
and vision towers. A pair is one new token attending to one token of its context."""

import math

from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine

_BF16_BYTES = 2.0
_FP8_BLOCK_BYTES = 1 + 4 / (128 * 128)
"""An fp8 weight and its share of the fp32 scale of a 128 x 128 block."""
_INDEX_BLOCK = 128
"""Values of an indexer's key that share an fp32 scale; fp8 whatever the KV is (vLLM, deepseek_v2.py)."""


def expert_layers(model: Model) -> int:
    """Layers with routed experts; the others are dense."""
    return model.layers - model.first_dense if model.experts else 0


def attention_parameters(model: Model) -> int:
    """Projections of one layer: q, k, v, o, or the low-rank ones of MLA."""
    heads = model.heads * model.head_dim
    if not model.kv_lora_rank:
        return model.hidden * (2 * heads + 2 * model.kv_heads * model.head_dim)
    queries = heads + model.heads * model.rope_dim
    up = (model.q_lora_rank or model.hidden) * queries + model.kv_lora_rank * 2 * heads
    return _down_parameters(model) + _indexer_parameters(model) + up + heads * model.hidden


def replicated_parameters(model: Model) -> int:
    """Parameters that every GPU holds and computes whole: MLA's down projections and the indexer."""
    return model.layers * (_down_parameters(model) + _indexer_parameters(model))


def per_gpu(whole: float, replicated: float, gpus: int) -> float:
    """The share of each GPU in `whole`: all of the `replicated` part and a slice of the rest."""
    return (whole - replicated) / gpus + replicated


def expert_parameters(model: Model) -> int:
    """One routed expert: gate, up and down projection."""
    return 3 * model.hidden * model.expert_intermediate


def dense_parameters(model: Model) -> int:
    """Parameters that every token passes, without the router: attention, dense and shared FFN."""
    sparse = expert_layers(model)
    ffn = (model.layers - sparse) * 3 * model.hidden * model.intermediate
    return (
        model.layers * attention_parameters(model)
        + ffn
        + sparse * model.shared_experts * expert_parameters(model)
    )


def router_parameters(model: Model) -> int:
    return expert_layers(model) * model.hidden * model.experts


def lm_head_parameters(model: Model) -> int:
    """The output projection; the input embedding is of the same size."""
    return model.vocab * model.hidden


def total_parameters(model: Model) -> int:
    routed = expert_layers(model) * model.experts * expert_parameters(model)
    return dense_parameters(model) + router_parameters(model) + routed + 2 * lm_head_parameters(model)


def active_parameters(model: Model) -> int:
    """Parameters a token is multiplied with, lm_head included."""
    routed = expert_layers(model) * model.experts_per_token * expert_parameters(model)
    return dense_parameters(model) + router_parameters(model) + routed + lm_head_parameters(model)


def linear_flop_per_token(model: Model) -> int:
    """Matrix multiplications of one token without the lm_head, which only emitting tokens pass."""
    return 2 * (active_parameters(model) - lm_head_parameters(model))


def linear_flop_per_gpu(model: Model, gpus: int) -> float:
    """The part of `linear_flop_per_token` that each of `gpus` computes."""
    return per_gpu(linear_flop_per_token(model), 2 * replicated_parameters(model), gpus)


def attention_flop_per_pair(model: Model) -> float:
    """Score and weighted sum of one pair in all layers; MLA's head width is the mean of both."""
    return 4 * model.heads * (model.head_dim + model.rope_dim / 2) * model.layers


def index_flop_per_pair(model: Model) -> int:
    """Scores of one pair by the indexers of all layers, which every GPU computes whole, in fp8."""
    return 2 * model.index_heads * model.index_head_dim * model.layers


def bf16_parameters(model: Model) -> int:
    """Parameters of layers that stay in bf16 where the others are quantised; experts never do."""
    attention = model.layers if model.bf16_attention else model.bf16_layers
    return attention * attention_parameters(model) + model.bf16_layers * 3 * model.hidden * model.intermediate


def bf16_flop_per_gpu(model: Model, gpus: int) -> float:
    """Products of one token with `bf16_parameters` on each of `gpus`."""
    replicated = 2 * replicated_parameters(model) if model.bf16_attention else 0
    return per_gpu(2 * bf16_parameters(model), replicated, gpus)


def expert_bytes(model: Model) -> float:
    """Stored bytes of one routed expert, scales included."""
    return expert_parameters(model) * _quantised_bytes(model)


def step_bytes(model: Model) -> float:
    """Bytes every step reads whatever its tokens, over all GPUs: layers without experts, and the lm_head."""
    per_weight = _BF16_BYTES if model.weights == "int4_experts" else _quantised_bytes(model)
    kept = bf16_parameters(model)
    always_bf16 = kept + router_parameters(model) + lm_head_parameters(model)
    return (dense_parameters(model) - kept) * per_weight + always_bf16 * _BF16_BYTES


def weight_bytes(model: Model) -> int:
    """Bytes of the whole checkpoint in memory, over all GPUs; router and embeddings are bf16."""
    routed = expert_layers(model) * model.experts * expert_bytes(model)
    return round(step_bytes(model) + routed + lm_head_parameters(model) * _BF16_BYTES)


def replicated_bytes(model: Model) -> float:
    """Bytes of `replicated_parameters`, of which `weight_bytes` and `step_bytes` count one copy."""
    kept = model.bf16_attention or model.weights == "int4_experts"
    return replicated_parameters(model) * (_BF16_BYTES if kept else _quantised_bytes(model))


def routed_bytes(model: Model) -> float:
    """Bytes of all routed experts, which `weight_bytes` counts."""
    return expert_layers(model) * model.experts * expert_bytes(model)


def weight_bytes_on_gpu(model: Model, layout: Layout) -> float:
    """Bytes of the weights on each GPU of `layout`.

    Each data-parallel rank holds attention, dense and shared layers and the embeddings whole; the routed
    experts are cut over the GPUs of all ranks (vLLM, FusedMoEParallelConfig).
    """
    if layout.data_parallel == 1:
        return per_gpu(weight_bytes(model), replicated_bytes(model), layout.tensor_parallel)
    routed = routed_bytes(model)
    rest = per_gpu(weight_bytes(model) - routed, replicated_bytes(model), layout.tensor_parallel)
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


def _down_parameters(model: Model) -> int:
    """MLA's projections of one layer to its low-rank queries and to the latent."""
    if not model.kv_lora_rank:
        return 0
    return model.hidden * (model.q_lora_rank + model.kv_lora_rank + model.rope_dim)


def _indexer_parameters(model: Model) -> int:
    """One layer's indexer: its queries from the low-rank ones, its key, and the weights of its heads."""
    width = model.index_heads * model.index_head_dim
    return model.q_lora_rank * width + (
        model.hidden * (model.index_head_dim + model.index_heads) if width else 0
    )


def _quantised_bytes(model: Model) -> float:
    """A quantised weight and its share of a scale: fp32 of an fp8 block, bf16 of a group of int4 weights."""
    scale = 2 / model.int4_group if model.int4_group else 0.0
    return {"bf16": _BF16_BYTES, "fp8": _FP8_BLOCK_BYTES}.get(model.weights, 0.5 + scale)
