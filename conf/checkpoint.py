"""Architecture facts of a checkpoint from its config.json.

Families: Qwen3-MoE, Mixtral and Llama (also dense Qwen3), and DeepSeek's latent attention, which Kimi
shares. The text part of a vision model counts. What is left out (norms, vision towers, extra prediction
layers) is left out of the facts too. Number formats of weights come from its `quantization_config`: lists of
modules that stay in 16 bits are read name by name, and a format that the fields of `Model` cannot say is
refused. Norms, routers, embeddings and the lm_head always stay in 16 bits; zero points are not counted.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain, combinations
from pathlib import Path
from typing import Any

from conf.io import bounded_yaml
from conf.io.check import require, require_mapping
from conf.io.one_line import one_line

MOST = 2**40
"""Upper bound of every count in a config.json (our choice)."""
_SIZES = {"layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "max_context_tokens", "kv_lora_rank"}
"""Fields that must be above 0."""
TABLES = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True, slots=True)
class Stored:
    """The fields of `Model` of the same names."""

    weights: str = "bf16"
    bf16_attention: bool = False
    bf16_layers: int = 0
    int4_group: int = 32


@cache
def _table(name: str) -> Mapping[str, Any]:
    table: dict[str, Any] = bounded_yaml.read(TABLES.read_text())[name]
    return table


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `conf.specs.model.Model` from `config`, the tree of a config.json.

    Raises ValueError with one line for an architecture or quantisation that is not modelled, or an
    impossible value.
    """
    names = config.get("architectures")
    family = str(names[0]) if isinstance(names, list) and names else "none"
    families = _table("architectures")
    require(
        family in families,
        f"architecture {family} is not modelled; there are {', '.join(families)}; for another one set the "
        "fields of model by hand (model.layers=... and so on, as in conf/model)",
    )
    text = {**config, **require_mapping(config, "text_config")}
    for key, only in _table("only").items():
        require(text.get(key, only) == only, f"{key}={text.get(key)} is not modelled, only {only}")
    _refuse_window(text)
    keys = families[family]
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
    every: dict[str, Any] = dict.fromkeys(chain(*families.values()), 0) | counts
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


METHODS = "fp8, fbgemm_fp8, gptq, awq and compressed-tensors with 8-bit float or 4-bit integer weights"
MOST_LAYERS, MOST_NAMES, MOST_PATTERNS = 1024, 8192, 32
"""Layers, modules by name and regular expressions that a list is read for (our choice: none has as many)."""
_FORMATS = {("float", "8"): "fp8", ("int", "4"): "int4"}
"""Types and bits of compressed-tensors, as `Model.weights` calls them."""
_UNLISTED = (None, [128, 128])
"""FP8 blocks that share a scale: a whole matrix or channel, or the block size that the model counts."""
_APART = re.compile(r"\b(visual|vision_tower|vision_model|mm_projector|multi_modal_projector|mtp)\b")
"""Parts beside the text layers, with everything below them."""
_MIXTRAL_MODULES = {"block_sparse_moe": "mlp", "w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
"""Mixtral's names of modules, and those of the other mixtures."""
_MIXTRAL = re.compile(rf"\b({'|'.join(_MIXTRAL_MODULES)})\b")
_LAYER = re.compile(r"\blayers\.(\d{1,6})\b")
_ROOTS = ("model.language_model.", "language_model.model.", "language_model.", "model.", "")
"""Prefixes of the names of text layers, the longer first."""
_SLOW = re.compile(r"\)[*+?{]|\{|\\[1-9]|\(\?")
_MOST_REPEATS = 3
"""Parts of a regular expression, and repetitions in it, with which a match may take for ever (our choice)."""


def _stored(text: Mapping[str, Any], facts: Mapping[str, Any]) -> Stored:
    """Number formats of the linear layers' weights of a model with these `facts`."""
    quantised = require_mapping(text, "quantization_config")
    if not quantised:
        dtype = text.get("torch_dtype", text.get("dtype", "bfloat16"))
        require(dtype in ("bfloat16", "float16"), f"weights of type {dtype} are not modelled")
        return Stored()
    weights, group = _scheme(quantised)
    lists = (_names(quantised, key) for key in ("modules_to_not_convert", "ignored_layers", "ignore"))
    kept = [_MIXTRAL.sub(lambda name: _MIXTRAL_MODULES[name[0]], name) for name in chain(*lists)]
    if not kept:
        return Stored(weights, int4_group=group)
    layers = int(facts["layers"])
    require(layers <= MOST_LAYERS, f"layers={layers} are too many to read which of them stay in 16 bits")
    modules = _modules(facts)
    hit = _hit(kept, modules, layers)
    kept_layers = {kind: _whole(kind, names, hit) for kind, names in modules.items() if kind}
    attention, ffn = kept_layers["attention"], kept_layers["feed-forward"]
    if facts["experts"]:
        return _mixture(Stored(weights, len(attention) == layers, 0, group), kept_layers, modules)
    alike = len(attention) == layers or attention == ffn
    require(
        alike,
        f"attention of {len(attention)} layers but feed-forward of {len(ffn)} in 16 bits is not modelled",
    )
    return Stored(weights, len(attention) == layers, len(ffn), group)


def _mixture(
    base: Stored, kept_layers: Mapping[str, set[int]], modules: Mapping[str, Mapping[str, int]]
) -> Stored:
    """The format of a mixture: 4-bit routed experts alone, or everything but perhaps the attention."""
    rest = [kind for kind in ("feed-forward", "shared experts") if modules[kind]]
    kept = [kind for kind in rest if len(kept_layers[kind]) == len(set(modules[kind].values()))]
    if base.weights == "int4" and base.bf16_attention and kept == rest and not kept_layers["experts"]:
        return Stored("int4_experts", int4_group=base.int4_group)
    sliced = any(kept_layers[kind] for kind in (*rest, "experts")) or (
        kept_layers["attention"] and not base.bf16_attention
    )
    require(not sliced, "a mixture with some of its layers or experts in 16 bits is not modelled")
    return base


def _scheme(quantised: Mapping[str, Any]) -> tuple[str, int]:
    """Type of the quantised weights, and how many share a scale."""
    method = one_line(str(quantised.get("quant_method", "none")), 60)
    if method in ("fp8", "fbgemm_fp8"):
        _only(quantised, "weight_block_size", _UNLISTED)
        return "fp8", 32
    if method in ("gptq", "awq"):
        _only(quantised, "bits" if "w_bit" not in quantised else "w_bit", (4,))
        _only(quantised, "lm_head", (None, False))
        for key in ("dynamic", "modules_in_block_to_quantize"):
            require(not quantised.get(key), f"quantization_config.{key} is not modelled")
        return "int4", _group(quantised, "q_group_size" if "q_group_size" in quantised else "group_size")
    groups = require_mapping(quantised, "config_groups")
    parts = [require_mapping(groups, name) for name in groups]
    weights = [require_mapping(part, "weights") for part in parts]
    formats = {_FORMATS.get((str(each.get("type")), str(each.get("num_bits"))), "") for each in weights}
    is_modelled = method == "compressed-tensors" and len(formats) == 1 and "" not in formats
    require(is_modelled, f"quantization_config of {method} is not modelled; there are {METHODS}")
    for part, each in zip(parts, weights, strict=True):
        _only(part, "targets", (None, ["Linear"]))
        _only(each, "block_structure", (*_UNLISTED, "128x128"))
    if formats == {"fp8"}:
        return "fp8", 32
    sizes = {0 if each.get("strategy") == "channel" else _group(each, "group_size") for each in weights}
    require(len(sizes) == 1, "quantization_config with several group sizes is not modelled")
    return "int4", sizes.pop()


def _only(tree: Mapping[str, Any], key: str, modelled: tuple[Any, ...]) -> None:
    value = tree.get(key)
    there = ", ".join(str(each) for each in modelled if each is not None)
    shown = one_line(str(value), 60)
    require(value in modelled, f"quantization_config: {key}={shown} is not modelled, only {there}")


def _group(tree: Mapping[str, Any], key: str) -> int:
    """Weights that share a scale; 0 where a whole channel does."""
    value = tree.get(key)
    fits = type(value) is int and (value == -1 or 8 <= value <= 1024)
    shown = one_line(str(value), 60)
    require(fits, f"quantization_config: {key}={shown} is not modelled, only 8 to 1024, or -1 for a channel")
    return max(0, int(str(value)))


def _names(quantised: Mapping[str, Any], key: str) -> list[str]:
    """A list of module names; `null` is an empty one."""
    names = quantised.get(key) or []
    fits = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
    require(fits, f"quantization_config: {key} is no list of names of modules")
    require(len(names) <= MOST_NAMES, f"quantization_config: {key} has more than {MOST_NAMES} entries")
    return names


def _modules(facts: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Module name -> its layer, for each kind; kind "" holds those that stay in 16 bits anyway."""
    parts = _table("modules")
    layers, dense = range(facts["layers"]), facts["first_dense"] if facts["experts"] else facts["layers"]
    sparse = layers[dense:]

    def named(parts: list[str], among: range, below: str) -> dict[str, int]:
        return {f"layers.{layer}.{below}{part}": layer for layer in among for part in parts}

    return {
        "attention": named(parts["latent" if facts["kv_lora_rank"] else "attention"], layers, "self_attn."),
        "feed-forward": named(parts["ffn"], layers[:dense], "mlp."),
        "shared experts": named(
            parts["ffn"], sparse if facts["shared_experts"] else sparse[:0], "mlp.shared_experts."
        ),
        "experts": named(parts["ffn"], sparse, "mlp.experts.0."),
        "": {**named(parts["uncounted"], layers, ""), **dict.fromkeys(parts["outside"], -1)},
    }


def _hit(kept: list[str], modules: Mapping[str, Mapping[str, int]], layers: int) -> set[str]:
    """The modules that the entries name. Raises ValueError for an entry that names no known module."""
    names = list(chain(*modules.values()))
    runs: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        for begin, end in combinations(range(len(parts) + 1), 2):
            runs.setdefault(".".join(parts[begin:end]), []).append(name)
    patterns = [entry for entry in kept if entry.startswith("re:")]
    require(len(patterns) <= MOST_PATTERNS, f"more than {MOST_PATTERNS} regular expressions of modules")
    hit: set[str] = set()
    for entry in dict.fromkeys(kept):
        plain = entry.removeprefix(next(root for root in _ROOTS if entry.startswith(root)))
        named = _matched(entry[3:], names) if entry.startswith("re:") else runs.get(plain, [])
        shown = one_line(entry, 80)
        layer = _LAYER.search(entry)  # those after the last one predict further tokens
        apart = _APART.search(entry) or (layer and int(layer[1]) >= layers)
        require(
            bool(named or apart),
            f"quantization_config leaves {shown} as it is, which is no part of the model",
        )
        hit.update(named)
    return hit


def _matched(pattern: str, names: list[str]) -> list[str]:
    """Modules whose names begin with a match of the regular expression, as in compressed-tensors."""
    shown, repeats = one_line(pattern, 80), pattern.count("*") + pattern.count("+")
    fits = len(pattern) <= 200 and repeats <= _MOST_REPEATS and not _SLOW.search(pattern)
    require(fits, f"quantization_config: the regular expression {shown} is too intricate to be followed")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"quantization_config: {shown} is no regular expression: {error}") from error
    return [name for name in names if any(compiled.match(root + name) for root in _ROOTS)]


def _whole(kind: str, names: Mapping[str, int], hit: set[str]) -> set[int]:
    """Layers whose modules of a kind are all named. Raises ValueError for a layer that is named in part."""
    of_layer: dict[int, list[bool]] = {}
    for name, layer in names.items():
        of_layer.setdefault(layer, []).append(name in hit)
    torn = [layer for layer, flags in of_layer.items() if any(flags) and not all(flags)]
    require(not torn, f"part of the {kind} of layer {torn[0] if torn else ''} in 16 bits is not modelled")
    return {layer for layer, flags in of_layer.items() if all(flags)}
