"""Writes a checkpoint's folder that vLLM can open: config.json, a tokenizer and, if asked, random weights."""

import json
import os
import string
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.specs.experiment import Model

END_OF_TEXT = "<|endoftext|>"
BYTES = 256
BLOCK = 128
"""Width and height of a block of the published FP8 checkpoints' scales (their config.json)."""
WEIGHTS_SD = 0.02
"""The initialisation of config.json's `initializer_range`."""
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_folder(model: Model, folder: Path, weights: bool = False, seed: int = 0) -> Path:
    """Write config.json and a tokenizer of `model.vocab` tokens into `folder`, and random `weights` if asked.

    The config says that the weights are FP8 in blocks where those of `model` are, unless weights are written:
    those are float32. A folder that exists is filled anew. Raises ValueError for an architecture that it
    cannot write: latent attention (MLA), dense layers in a mixture, or shared experts.
    """
    config = _config(model)
    if model.weights == "fp8" and not weights:
        config["quantization_config"] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        }
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
    _write(folder / "tokenizer.json", _tokenizer(model.vocab))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.max_context_tokens}
    tokenizer |= {"eos_token": END_OF_TEXT, "pad_token": END_OF_TEXT, "clean_up_tokenization_spaces": False}
    _write(folder / "tokenizer_config.json", tokenizer | {"chat_template": CHAT_TEMPLATE})
    if weights:
        _write_weights(model, folder / "model.safetensors", seed)
    return folder


def _write(path: Path, tree: Any) -> None:
    """Whole or not at all, for several processes may make the same folder."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(json.dumps(tree, ensure_ascii=False))
    new.replace(path)


def _config(model: Model) -> dict[str, Any]:
    """The config.json of the family that has this architecture."""
    if model.kv_lora_rank or model.first_dense or model.shared_experts:
        raise ValueError(
            f"{model.name}: a folder can be written for Qwen3-MoE and Llama only, without latent attention, "
            "dense layers in a mixture and shared experts; give engine.model_path=FOLDER of the checkpoint"
        )
    config: dict[str, Any] = {
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.max_context_tokens,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "hidden_act": "silu",
        "initializer_range": WEIGHTS_SD,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": model.vocab - 1,
        "bos_token_id": model.vocab - 1,
    }
    if not model.experts:
        return config | {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "intermediate_size": model.intermediate,
        }
    return config | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "intermediate_size": model.intermediate or model.expert_intermediate,
        "moe_intermediate_size": model.expert_intermediate,
        "num_experts": model.experts,
        "num_experts_per_tok": model.experts_per_token,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _tokenizer(vocab: int) -> dict[str, Any]:
    """A byte-level BPE without merges: text is one token a byte, and every further id prints letters."""
    pieces = [*_byte_letters(), *islice(_words(), vocab - BYTES - 1)]
    ids = {piece: index for index, piece in enumerate(pieces)}
    end = {"id": vocab - 1, "content": END_OF_TEXT, "special": True, "normalized": False}
    end |= {"single_word": False, "lstrip": False, "rstrip": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [end],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": ids | {END_OF_TEXT: vocab - 1}, "merges": []},
    }


def _byte_letters() -> list[str]:
    """The printable letter that stands for each byte in a byte-level BPE (GPT-2's table)."""
    kept = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    moved = iter(range(BYTES, 2 * BYTES))
    return [chr(byte if byte in kept else next(moved)) for byte in range(BYTES)]


def _words() -> Iterator[str]:
    """Words of letters after a space ("Ġ" in a byte-level BPE), so that answers read as text."""
    for length in range(1, 5):
        for letters in product(string.ascii_lowercase, repeat=length):
            yield "Ġ" + "".join(letters)


def _write_weights(model: Model, path: Path, seed: int) -> None:
    from safetensors.numpy import save_file  # comes with vLLM; nothing else here needs it

    rng = np.random.default_rng(seed)
    tensors = {name: _drawn(rng, shape) for name, shape in _shapes(model)}
    new = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(tensors, new, metadata={"format": "pt"})
    new.replace(path)


def _drawn(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Norms are vectors and are 1; everything else is normal."""
    if len(shape) == 1:
        return np.ones(shape, dtype=np.float32)
    return (WEIGHTS_SD * rng.standard_normal(shape)).astype(np.float32)


def _shapes(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all tensors, as the checkpoints of both families have them."""
    hidden, query, kv = model.hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim
    yield "model.embed_tokens.weight", (model.vocab, hidden)
    for layer in range(model.layers):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
        yield f"{at}.self_attn.q_proj.weight", (query, hidden)
        yield f"{at}.self_attn.k_proj.weight", (kv, hidden)
        yield f"{at}.self_attn.v_proj.weight", (kv, hidden)
        yield f"{at}.self_attn.o_proj.weight", (hidden, query)
        if not model.experts:
            yield from _mlp(f"{at}.mlp", hidden, model.intermediate)
            continue
        yield f"{at}.self_attn.q_norm.weight", (model.head_dim,)
        yield f"{at}.self_attn.k_norm.weight", (model.head_dim,)
        yield f"{at}.mlp.gate.weight", (model.experts, hidden)
        for expert in range(model.experts):
            yield from _mlp(f"{at}.mlp.experts.{expert}", hidden, model.expert_intermediate)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (model.vocab, hidden)


def _mlp(at: str, hidden: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{at}.gate_proj.weight", (width, hidden)
    yield f"{at}.up_proj.weight", (width, hidden)
    yield f"{at}.down_proj.weight", (hidden, width)
