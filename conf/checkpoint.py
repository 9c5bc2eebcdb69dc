"""Architecture facts of a checkpoint from its config.json.

Families: Qwen3-MoE, Mixtral and Llama (also dense Qwen3), and DeepSeek's latent attention, which Kimi
shares. The text part of a vision model counts. What is left out (norms, vision towers, extra prediction
layers) is left out of the facts too.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from conf.io.check import require, require_mapping
from conf.io.one_line import one_line
from conf.quantised import Stored, stored

MOST = 2**40
"""Upper bound of every count in a config.json (our choice)."""
_GQA = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "vocab": "vocab_size",
    "intermediate": "intermediate_size",
    "max_context_tokens": "max_position_embeddings",
}
_QWEN_MOE = _GQA | {
    "experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_intermediate": "moe_intermediate_size",
}
_MIXTRAL = _GQA | {
    "experts": "num_local_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_intermediate": "intermediate_size",
}
_MLA = _GQA | {
    "experts": "n_routed_experts",
    "experts_per_token": "num_experts_per_tok",
    "shared_experts": "n_shared_experts",
    "expert_intermediate": "moe_intermediate_size",
    "first_dense": "first_k_dense_replace",
    "kv_lora_rank": "kv_lora_rank",
    "q_lora_rank": "q_lora_rank",
    "rope_dim": "qk_rope_head_dim",
    "head_dim": "qk_nope_head_dim",
}
_INDEXED = _MLA | {
    "index_heads": "index_n_heads",
    "index_head_dim": "index_head_dim",
    "index_topk": "index_topk",
}
_FAMILIES = {
    "LlamaForCausalLM": _GQA,
    "Qwen3ForCausalLM": _GQA,
    "MixtralForCausalLM": _MIXTRAL,
    "Qwen3MoeForCausalLM": _QWEN_MOE,
    "Qwen3VLMoeForConditionalGeneration": _QWEN_MOE,
    "DeepseekV3ForCausalLM": _MLA,
    "DeepseekV32ForCausalLM": _INDEXED,
    "KimiK25ForConditionalGeneration": _MLA,
}
_ONLY = {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_layer_freq": 1,
    "attention_bias": False,
    "use_sliding_window": False,
}
"""Keys that change the architecture, and the one value of each that the model of it covers."""
_SIZES = {"layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "max_context_tokens", "kv_lora_rank"}
"""Fields that must be above 0."""


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `conf.specs.model.Model` from `config`, the tree of a config.json.

    Raises ValueError with one line for an architecture or quantisation that is not modelled, or an
    impossible value.
    """
    names = config.get("architectures")
    family = str(names[0]) if isinstance(names, list) and names else "none"
    require(
        family in _FAMILIES,
        f"architecture {family} is not modelled; there are {', '.join(_FAMILIES)}; for another one set the "
        "fields of model by hand (model.layers=... and so on, as in conf/model)",
    )
    text = {**config, **require_mapping(config, "text_config")}
    for key, only in _ONLY.items():
        require(text.get(key, only) == only, f"{key}={text.get(key)} is not modelled, only {only}")
    _refuse_window(text)
    keys = _FAMILIES[family]
    counts = {ours: _count(text, theirs, ours in _SIZES) for ours, theirs in keys.items()}
    for part, whole in (("experts_per_token", "experts"), ("first_dense", "layers")):
        if part in counts:
            fits = counts[part] <= counts[whole]
            require(fits, f"{keys[part]}={counts[part]} is above {keys[whole]}={counts[whole]}")
    if "kv_lora_rank" in keys:
        width = text.get("v_head_dim", counts["head_dim"])
        require(
            width == counts["head_dim"], f"v_head_dim={width} other than qk_nope_head_dim is not modelled"
        )
    else:
        own = text.get("head_dim") is not None
        counts["head_dim"] = _count(text, "head_dim", True) if own else counts["hidden"] // counts["heads"]
    # A model of another family was chosen for its constants: none of its architecture may stay.
    every: dict[str, Any] = {**dict.fromkeys({**_QWEN_MOE, **_INDEXED}, 0), **counts}
    return {**every, **asdict(_stored(text, every)), "image_token_px": _image_token_px(config)}


def _refuse_window(text: Mapping[str, Any]) -> None:
    """Raise ValueError for attention to the last tokens alone, which would read less KV than is counted."""
    window, longest = text.get("sliding_window"), text.get("max_position_embeddings")
    used = window is not None and text.get("use_sliding_window", True)
    whole = isinstance(window, int) and isinstance(longest, int) and window >= longest
    require(
        not used or whole,
        f"sliding_window={one_line(str(window), 60)} is not modelled: every token attends to all before it; "
        "set it to null if the engine ignores it",
    )


def _image_token_px(config: Mapping[str, Any]) -> int:
    """Side in pixels of the square that becomes one token: merged patches; 0 without known vision."""
    vision = require_mapping(config, "vision_config")
    merged = vision.get("spatial_merge_size", (vision.get("merge_kernel_size") or [None])[0])
    patch = vision.get("patch_size")
    counts = all(isinstance(side, int) and 0 <= side <= MOST for side in (patch, merged))
    return patch * merged if counts else 0


def _count(text: Mapping[str, Any], key: str, is_size: bool) -> int:
    """A count; `null`, which some keys have for none, is 0; a size must be above 0."""
    require(key in text, f"has no {key}")
    value = 0 if text[key] is None else text[key]
    counts = type(value) is int and 0 <= value <= MOST  # true is an int too
    require(counts, f"{key}={one_line(str(value), 60)} is not a count")
    require(value > 0 or not is_size, f"{key}={text[key]} must be at least 1")
    return int(value)


def _stored(text: Mapping[str, Any], facts: Mapping[str, Any]) -> Stored:
    """Number formats of the linear layers' weights."""
    quantised = require_mapping(text, "quantization_config")
    if quantised:
        return stored(quantised, facts)
    dtype = text.get("torch_dtype", text.get("dtype", "bfloat16"))
    require(dtype in ("bfloat16", "float16"), f"weights of type {dtype} are not modelled")
    return Stored()
