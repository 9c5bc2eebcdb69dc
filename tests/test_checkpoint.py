"""A checkpoint's config.json instead of a model file: the same architecture, or one line why not."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from conf import ConfigError, checkpoint, load
from conf.load import dump
from conf.schema import Model
from serve_apps.engine_model import architecture

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 126,
    "hidden_size": 16384,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "intermediate_size": 53248,
    "max_position_embeddings": 131072,
    "quantization_config": {"quant_method": "fbgemm_fp8"},
}
QWEN = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 94,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "intermediate_size": 12288,
    "max_position_embeddings": 262144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1536,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
QWEN_VL = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "text_config": {**QWEN, "quantization_config": None, "dtype": "bfloat16"},
    "vision_config": {"hidden_size": 1152, "depth": 27, "patch_size": 16, "spatial_merge_size": 2},
}
DEEPSEEK = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "intermediate_size": 18432,
    "max_position_embeddings": 163840,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "quantization_config": {"quant_method": "fp8"},
}
INT4 = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 4, "group_size": 32}}},
}
KIMI = {
    **DEEPSEEK,
    "architectures": ["KimiK25ForConditionalGeneration"],
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "vocab_size": 163840,
    "max_position_embeddings": 262144,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "quantization_config": INT4,
    "vision_config": {"patch_size": 14, "merge_kernel_size": [2, 2]},
}
CHECKPOINTS = {
    "llama31_405b_fp8": LLAMA,
    "qwen3_235b_a22b_fp8": QWEN,
    "qwen3_vl_235b_bf16": QWEN_VL,
    "deepseek_v32_fp8": DEEPSEEK,
    "kimi_k25_int4": KIMI,
}
OWN = {"name", "served_name", "kv_cache", "source", "step_time", "config_json"}
"""Fields that no config.json settles."""


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_has_the_facts_of_its_model_file(name: str) -> None:
    known, found = load([f"model={name}"]).model, checkpoint.facts(CHECKPOINTS[name])
    # The width of a dense layer of a model that has none.
    unused = {"intermediate"} if name.startswith("qwen") else set()
    assert set(found) == {field.name for field in fields(Model)} - OWN
    assert {
        key: value for key, value in found.items() if getattr(known, key) != value and key not in unused
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
    ({**QWEN, "head_dim": -4}, "head_dim=-4 is not a count"),
    ({**LLAMA, "hidden_size": [16384]}, "hidden_size=[16384] is not a count"),
    ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers=0 must be at least 1"),
    ({**LLAMA, "num_attention_heads": 0}, "num_attention_heads=0 must be at least 1"),
    ({**LLAMA, "num_key_value_heads": None}, "num_key_value_heads=None must be at least 1"),
    ({**LLAMA, "architectures": [{}]}, "architecture {} is not modelled"),
    ({**QWEN_VL, "text_config": [1]}, "text_config=[1] is not a mapping"),
    ({**LLAMA, "quantization_config": "fp8"}, "quantization_config=fp8 is not a mapping"),
    ({**LLAMA, "quantization_config": {**INT4, "config_groups": [1]}}, "config_groups=[1] is not a mapping"),
    ({**LLAMA, "quantization_config": {"config_groups": {"a": [1]}}}, "a=[1] is not a mapping"),
    (
        {**LLAMA, "quantization_config": {**INT4, "config_groups": {"a": {"weights": {"type": [1]}}}}},
        "quantization_config of compressed-tensors is not modelled",
    ),
    ({**QWEN, "mlp_only_layers": [0]}, "mlp_only_layers=[0] is not modelled, only []"),
    ({**DEEPSEEK, "v_head_dim": 64}, "v_head_dim=64 other than qk_nope_head_dim"),
    ({**QWEN, "quantization_config": {"quant_method": "awq"}}, "quantization_config of awq is not modelled"),
    ({**LLAMA, "quantization_config": None, "torch_dtype": "float32"}, "weights of type float32"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_not_modelled_is_refused(config: dict[str, Any], message: str) -> None:
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
