"""conf.checkpoint: a config.json instead of a model file, or one line why not."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf import ConfigError, checkpoint, load
from conf.compose import dump
from conf.specs.experiment import Model
from serve_apps.engine_model.cost import architecture
from serve_apps.engine_model.cost.step_time import roofline

DATA = Path(__file__).parents[1] / "data"

CONFIGS: dict[str, Any] = yaml.safe_load((DATA / "checkpoints.yaml").read_text())
GPTQ, AWQ, W4A16 = CONFIGS.pop("four_bits")
LLAMA = CONFIGS["llama"] | {
    "quantization_config": {
        "quant_method": "fbgemm_fp8",
        "modules_to_not_convert": [
            *(f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(126) for name in "qkvo"),
            *(f"model.layers.{at}.mlp.{name}_proj" for at in (0, 125) for name in ("gate", "up", "down")),
        ],
    }
}
QWEN = CONFIGS["qwen"] | {
    "quantization_config": {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": [
            "lm_head",
            *(f"model.layers.{at}.{part}" for at in range(94) for part in ("mlp.gate", "input_layernorm")),
        ],
    }
}
MIXTRAL, KIMI, LLAMA_70B = (CONFIGS[name] for name in ("mixtral", "kimi", "llama_70b"))
QWEN_VL = CONFIGS["qwen_vl"] | {"text_config": {**QWEN, "quantization_config": None, "dtype": "bfloat16"}}
CHECKPOINTS = {
    "llama31_405b_fp8": LLAMA,
    "qwen3_235b_a22b_fp8": QWEN,
    "qwen3_vl_235b_bf16": QWEN_VL,
    "deepseek_v32_fp8": CONFIGS["deepseek"],
    "kimi_k25_int4": KIMI,
}
OWN = {"name", "served_name", "kv_cache", "source", "step_time", "config_json", "posterior", "fitted_with"}
"""Fields that no config.json settles."""


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_has_the_facts_of_its_model_file(name: str) -> None:
    known, result = load([f"model={name}"]).model, checkpoint.facts(CHECKPOINTS[name])
    # The width of a dense layer of a model that has none.
    unused = {"intermediate"} if name.startswith("qwen") else set()
    assert set(result) == {field.name for field in fields(Model)} - OWN
    assert {
        key: value for key, value in result.items() if getattr(known, key) != value and key not in unused
    } == {}


def test_a_new_model_needs_a_file_only_and_says_whose_constants_it_has(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-30B-A3B"
    folder.mkdir()
    smaller = {"num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32}
    rest = {"moe_intermediate_size": 768, "quantization_config": None}
    (folder / "config.json").write_text(json.dumps({**QWEN, **smaller, **rest}))
    experiment = load([f"model.config_json={folder}/config.json", "model.kv_cache=bf16"])
    model = experiment.model
    assert (model.name, model.weights, model.layers, model.kv_cache) == ("Qwen3-30B-A3B", "bf16", 48, "bf16")
    assert architecture.total_parameters(model) == pytest.approx(30.5e9, rel=0.002)
    assert model.step_time.layer_us.source.startswith("of Qwen3-235B-A22B-Instruct-2507-FP8: ")
    assert model.step_time.gemm_decode.unit == "share of BF16 peak"
    saved = tmp_path / "config.yaml"
    saved.write_text(dump(experiment))
    (folder / "config.json").unlink()
    assert load(base=saved) == experiment


def quantised(config: dict[str, Any], **quantization: Any) -> dict[str, Any]:
    return {**config, "quantization_config": quantization}


def bytes_of(config: dict[str, Any]) -> int:
    """Bytes of a checkpoint with this config.json."""
    plain = load(["model=llama31_405b_fp8"]).model
    return architecture.weight_bytes(replace(plain, **checkpoint.facts(config)))


@pytest.mark.parametrize("quantization", [GPTQ, AWQ, W4A16], ids=lambda each: str(each["quant_method"]))
def test_a_dense_checkpoint_in_4_bits_is_a_quarter_and_its_scales(quantization: dict[str, Any]) -> None:
    assert bytes_of(LLAMA_70B) == pytest.approx(141.1e9, rel=1e-3)
    assert bytes_of(quantised(LLAMA_70B, **quantization)) == pytest.approx(39.5e9, rel=1e-3)


def test_a_scale_for_a_whole_channel_has_no_group() -> None:
    assert checkpoint.facts(quantised(LLAMA_70B, **GPTQ | {"group_size": -1}))["int4_group"] == 0


def test_what_stays_in_16_bits_is_counted() -> None:
    plain = quantised(LLAMA, quant_method="fp8")
    assert bytes_of(plain) == pytest.approx(410.1e9, rel=1e-3)
    assert bytes_of(LLAMA) == pytest.approx(487.2e9, rel=1e-3)
    attention = quantised(LLAMA, quant_method="fp8", ignored_layers=["self_attn"])
    assert bytes_of(attention) == pytest.approx(482.0e9, rel=1e-3)
    layers = quantised(LLAMA, quant_method="fp8", modules_to_not_convert=["model.layers.0", "model.layers.7"])
    assert (stored := checkpoint.facts(layers))["bf16_layers"] == 2
    assert not stored["bf16_attention"]


def test_what_stays_in_16_bits_computes_at_its_own_peak() -> None:
    """Decode at 100 % of each peak: two thirds of the FP8 rate for the sixth of the products in BF16."""
    specs = load(["hardware=mi325x", "model=llama31_405b_fp8", "layout=dp1_tp8"])
    plain = replace(specs.model, bf16_attention=False, bf16_layers=0)
    kept = architecture.bf16_flop_per_gpu(specs.model, 1)
    of_all = kept / architecture.linear_flop_per_token(plain)
    both, fp8 = (roofline(each, specs.hardware, specs.layout) for each in (specs.model, plain))
    assert both.prefill_gemm_token_s / fp8.prefill_gemm_token_s == pytest.approx(1 + of_all, rel=1e-3)
    assert both.weight_read_s > 1.15 * fp8.weight_read_s


@pytest.mark.parametrize(
    "kept",
    ["model.visual.blocks.3.attn.qkv", "model.layers.126.eh_proj", "re:.*norm.*", "language_model.lm_head"],
)
def test_what_is_not_modelled_may_stay_as_it_is(kept: str) -> None:
    facts = checkpoint.facts(quantised(LLAMA, quant_method="fp8", modules_to_not_convert=[kept]))
    assert (facts["weights"], facts["bf16_attention"], facts["bf16_layers"]) == ("fp8", False, 0)


def test_mixtral_has_its_published_sizes() -> None:
    model = replace(load().model, **checkpoint.facts(MIXTRAL))
    assert architecture.total_parameters(model) == pytest.approx(46.7e9, rel=0.002)
    assert architecture.active_parameters(model) == pytest.approx(12.9e9, rel=0.02)
    assert (model.head_dim, model.expert_intermediate, model.weights) == (128, 14336, "bf16")


@pytest.mark.parametrize("gate", ["model.layers.{}.block_sparse_moe.gate", "re:.*block_sparse_moe.gate"])
def test_mixtral_in_fp8_is_read_by_its_own_names(gate: str) -> None:
    kept = ["lm_head", *(gate.format(layer) for layer in range(32))]
    eight = quantised(MIXTRAL, quant_method="fp8", ignored_layers=kept)
    assert checkpoint.facts(eight)["weights"] == "fp8"
    one_expert = [*kept, "model.layers.0.block_sparse_moe.experts.0.w1"]
    with pytest.raises(ValueError, match="part of the experts of layer 0 in 16 bits"):
        checkpoint.facts(quantised(MIXTRAL, quant_method="fp8", ignored_layers=one_expert))


def test_a_mixture_in_4_bits_is_so_whole_unless_only_its_experts_are() -> None:
    assert (
        checkpoint.facts(quantised(KIMI, **KIMI["quantization_config"] | {"ignore": []}))["weights"] == "int4"
    )
    assert checkpoint.facts(KIMI)["weights"] == "int4_experts"


REFUSED = yaml.safe_load((DATA / "refused_checkpoints.yaml").read_text())


@pytest.mark.battery("wrong input")
@pytest.mark.parametrize(("name", "changes", "message"), REFUSED)
def test_what_is_not_modelled_is_refused_in_one_line(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the message is looked at below
        checkpoint.facts(CONFIGS.get(name, {}) | changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_dense_checkpoint_does_not_borrow_the_constants_of_a_mixture(tmp_path: Path) -> None:
    path = tmp_path / "Llama_config.json"
    path.write_text(json.dumps(LLAMA))
    with pytest.raises(ConfigError, match="is dense, unlike Qwen3-235B.*choose another with model=NAME$"):
        load([f"model.config_json={path}"])
    assert load([f"model.config_json={path}", "model=llama31_405b_fp8"]).model.name == "Llama"


def test_a_checkpoint_is_json_and_not_yaml(tmp_path: Path) -> None:
    path = tmp_path / "Small_config.json"
    path.write_text(json.dumps({**QWEN, "num_hidden_layers": 48, "chat_template": "${role}"}, indent="\t"))
    assert load([f"model.config_json={path}"]).model.layers == 48
    path.write_text("layers: 48")
    with pytest.raises(ConfigError, match="^cannot read .*Small_config.json: Expecting value") as caught:
        load([f"model.config_json={path}"])
    assert "\n" not in str(caught.value)


def test_a_wrong_value_of_a_checkpoint_is_one_line_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "Small_config.json"
    path.write_text(json.dumps({**QWEN, "torch_dtype": "a\nb", "quantization_config": None}))
    with pytest.raises(ConfigError) as caught:
        load([f"model.config_json={path}"])
    assert str(caught.value) == f"model.config_json={path}: weights of type a b are not modelled"
