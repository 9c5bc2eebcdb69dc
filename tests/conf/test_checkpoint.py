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
MIXTRAL, DEEPSEEK = CONFIGS["mixtral"], CONFIGS["deepseek"]
QWEN_VL = CONFIGS["qwen_vl"] | {
    "text_config": {**QWEN, "quantization_config": None, "dtype": "bfloat16"},
}
INT4 = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 4, "group_size": 32}}},
}
EXPERTS_ONLY = [
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    "re:.*lm_head.*",
    "re:vision_tower.*",
    "re:mm_projector.*",
]
LLAMA_70B = CONFIGS["llama_70b"] | {"quantization_config": LLAMA["quantization_config"]}
KIMI = CONFIGS["kimi"] | {"quantization_config": {**INT4, "ignore": EXPERTS_ONLY}}
CHECKPOINTS = {
    "llama31_405b_fp8": LLAMA,
    "qwen3_235b_a22b_fp8": QWEN,
    "qwen3_vl_235b_bf16": QWEN_VL,
    "deepseek_v32_fp8": DEEPSEEK,
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


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "w_bit": 4, "q_group_size": 128}
W4A16 = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "a": {"targets": ["Linear"], "weights": {"type": "int", "num_bits": 4, "group_size": 128}}
    },
    "ignore": ["lm_head"],
}


@pytest.mark.parametrize("quantization", [GPTQ, AWQ, W4A16], ids=lambda each: str(each["quant_method"]))
def test_a_dense_checkpoint_in_4_bits_is_a_quarter_and_its_scales(quantization: dict[str, Any]) -> None:
    assert bytes_of({**LLAMA_70B, "quantization_config": None}) == pytest.approx(141.1e9, rel=1e-3)
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


def with_kept(config: dict[str, Any], *kept: Any, **quantization: Any) -> dict[str, Any]:
    return quantised(config, **{"quant_method": "fp8", **quantization}, modules_to_not_convert=list(kept))


UNREADABLE: list[tuple[dict[str, Any], str]] = [
    (with_kept(LLAMA, "model.layers.3.mlpp"), "leaves model.layers.3.mlpp as it is, which is no part of the"),
    (with_kept(LLAMA, "model.layers.3.self_attn.o_proj"), "part of the attention of layer 3 in 16 bits"),
    (with_kept(LLAMA, "model.layers.3.self_attn"), "attention of 1 layers but feed-forward of 0 in 16 bits"),
    (
        with_kept(QWEN, "model.layers.3.mlp.experts"),
        "a mixture with some of its layers or experts in 16 bits",
    ),
    (with_kept(QWEN, "model.layers.3.self_attn"), "a mixture with some of its layers or experts in 16 bits"),
    (with_kept(LLAMA, 3), "modules_to_not_convert is no list of names"),
    (with_kept(LLAMA, "re:(a*)*b"), "regular expression (a*)*b is too intricate"),
    (with_kept(LLAMA, "re:[a"), "[a is no regular expression"),
    (with_kept({**LLAMA, "num_hidden_layers": 2**40}, "lm_head"), "are too many to read which of them stay"),
    (
        with_kept(LLAMA, weight_block_size=[64, 64]),
        "weight_block_size=[64, 64] is not modelled, only [128, 128]",
    ),
    (quantised(LLAMA, **{**GPTQ, "bits": 8}), "bits=8 is not modelled, only 4"),
    (quantised(LLAMA, **{**GPTQ, "group_size": 7}), "group_size=7 is not modelled, only 8 to 1024"),
    (quantised(LLAMA, **GPTQ, dynamic={"-:.*down.*": {}}), "quantization_config.dynamic is not modelled"),
    (quantised(LLAMA, **GPTQ, lm_head=True), "lm_head=True is not modelled, only False"),
    (
        quantised(
            LLAMA, **{**W4A16, "config_groups": {"a": {**W4A16["config_groups"]["a"], "targets": ["x"]}}}
        ),
        "targets=['x'] is not modelled, only ['Linear']",
    ),
]


@pytest.mark.parametrize(
    "kept",
    ["model.visual.blocks.3.attn.qkv", "model.layers.126.eh_proj", "re:.*norm.*", "language_model.lm_head"],
)
def test_what_is_not_modelled_may_stay_as_it_is(kept: str) -> None:
    facts = checkpoint.facts(with_kept(LLAMA, kept))
    assert (facts["weights"], facts["bf16_attention"], facts["bf16_layers"]) == ("fp8", False, 0)


def test_mixtral_has_its_published_sizes() -> None:
    model = replace(load().model, **checkpoint.facts(MIXTRAL))
    assert architecture.total_parameters(model) == pytest.approx(46.7e9, rel=0.002)
    assert architecture.active_parameters(model) == pytest.approx(12.9e9, rel=0.02)
    assert (model.head_dim, model.expert_intermediate, model.weights) == (128, 14336, "bf16")


@pytest.mark.parametrize("gate", ["model.layers.{}.block_sparse_moe.gate", "re:.*block_sparse_moe.gate"])
def test_mixtral_in_fp8_is_read_by_its_own_names(gate: str) -> None:
    kept = ["lm_head", *(gate.format(layer) for layer in range(32))]
    eight = {**MIXTRAL, "quantization_config": {"quant_method": "fp8", "ignored_layers": kept}}
    assert checkpoint.facts(eight)["weights"] == "fp8"
    one_expert = [*kept, "model.layers.0.block_sparse_moe.experts.0.w1"]
    with pytest.raises(ValueError, match="part of the experts of layer 0 in 16 bits"):
        checkpoint.facts(
            {**eight, "quantization_config": {"quant_method": "fp8", "ignored_layers": one_expert}}
        )


def test_a_mixture_in_4_bits_is_so_whole_unless_only_its_experts_are() -> None:
    assert checkpoint.facts(quantised(KIMI, **INT4))["weights"] == "int4"
    assert checkpoint.facts(KIMI)["weights"] == "int4_experts"


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"architectures": ["MambaForCausalLM"]},
        "architecture MambaForCausalLM is not modelled; there are Llama",
    ),
    ({}, "architecture none is not modelled"),
    ({key: value for key, value in QWEN.items() if key != "num_experts"}, "has no num_experts"),
    ({**QWEN, "num_experts": "many"}, "num_experts=many is not a count"),
    ({**QWEN, "num_experts": True}, "num_experts=True is not a count"),
    ({**QWEN, "num_experts_per_tok": 129}, "num_experts_per_tok=129 is above num_experts=128"),
    ({**DEEPSEEK, "first_k_dense_replace": 62}, "first_k_dense_replace=62 is above num_hidden_layers=61"),
    ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers=0 must be at least 1"),
    ({**LLAMA, "num_key_value_heads": None}, "num_key_value_heads=None must be at least 1"),
    ({**QWEN_VL, "text_config": [1]}, "text_config=[1] is not a mapping"),
    ({**LLAMA, "quantization_config": {"config_groups": {"a": [1]}}}, "a=[1] is not a mapping"),
    (
        {**LLAMA, "quantization_config": {**INT4, "config_groups": {"a": {"weights": {"type": [1]}}}}},
        "quantization_config of compressed-tensors is not modelled",
    ),
    ({**MIXTRAL, "sliding_window": 4096}, "sliding_window=4096 is not modelled: every token attends to all"),
    ({**QWEN, "mlp_only_layers": [0]}, "mlp_only_layers=[0] is not modelled, only []"),
    ({**DEEPSEEK, "v_head_dim": 64}, "v_head_dim=64 other than qk_nope_head_dim"),
    ({**QWEN, "quantization_config": {"quant_method": "hqq"}}, "quantization_config of hqq is not modelled"),
    ({**LLAMA, "quantization_config": None, "torch_dtype": "float32"}, "weights of type float32"),
]


@pytest.mark.battery("wrong input")
@pytest.mark.parametrize(("config", "message"), UNREADABLE + REFUSED)
def test_what_is_not_modelled_is_refused_in_one_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the message is looked at below
        checkpoint.facts(config)
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
