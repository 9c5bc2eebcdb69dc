"""Writes a checkpoint's folder that vLLM can open: config.json, a tokenizer and, if asked, random weights."""

import json
import os
import string
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.io import bounded_yaml
from conf.specs.experiment import Model

END_OF_TEXT = "<|endoftext|>"
BYTES = 256
WEIGHTS_SD = 0.02
"""The initialisation of config.json's `initializer_range`."""
Tree = dict[str, Any]


def write_folder(model: Model, folder: Path, weights: bool = False, seed: int = 0) -> Path:
    """Write config.json and a tokenizer of `model.vocab` tokens into `folder`, and random `weights` if asked.

    The config says that the weights are FP8 in blocks where those of `model` are, unless weights are written:
    those are float32. A folder that exists is filled anew. Raises ValueError for an architecture that it
    cannot write: latent attention (MLA), dense layers in a mixture, or shared experts.
    """
    table, family = _table(model), "mixture" if model.experts else "dense"
    if model.kv_lora_rank or model.first_dense or model.shared_experts:
        raise ValueError(
            f"{model.name}: a folder can be written for Qwen3-MoE and Llama only, without latent attention, "
            "dense layers in a mixture and shared experts; give engine.model_path=FOLDER of the checkpoint"
        )
    config = table["config"] | table[family]
    if model.weights == "fp8" and not weights:
        config["quantization_config"] = table["fp8"]
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
    _write(folder / "tokenizer.json", _tokenizer(model.vocab))
    _write(folder / "tokenizer_config.json", table["tokenizer_config"])
    if weights:
        _write_weights(model, folder / "model.safetensors", seed)
    return folder


def _table(model: Model) -> Tree:
    """model_folder.yaml with the facts of a model."""
    facts = {
        **asdict(model),
        "last_token": model.vocab - 1,
        "dense_width": model.intermediate or model.expert_intermediate,
        "query": model.heads * model.head_dim,
        "kv": model.kv_heads * model.head_dim,
    }
    table: Tree = _filled(bounded_yaml.read(Path(__file__).with_suffix(".yaml").read_text()), facts)
    return table


def _filled(tree: Any, facts: Mapping[str, Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _filled(value, facts) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_filled(value, facts) for value in tree]
    return facts.get(tree[1:-1], tree) if isinstance(tree, str) else tree


def _write(path: Path, tree: Any) -> None:
    """Whole or not at all, for several processes may make the same folder."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(json.dumps(tree, ensure_ascii=False))
    new.replace(path)


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
    """Names and shapes of all tensors."""
    tensors = _table(model)["tensors"]

    def named(kind: str, before: str = "") -> Iterator[tuple[str, tuple[int, ...]]]:
        return ((f"{before}{name}", tuple(shape)) for name, shape in tensors[kind].items())

    yield from named("first")
    for layer in range(model.layers):
        at = f"model.layers.{layer}."
        yield from named("layer", at)
        yield from named("mixture_layer" if model.experts else "dense_layer", at)
        for expert in range(model.experts):
            yield from named("expert", f"{at}mlp.experts.{expert}.")
    yield from named("last")
