"""serve_apps/engine_model/cost/architecture.py: parameters and bytes, published and counted by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf.specs.experiment import Experiment, Model, SimulatedEngine
from loadgen.cli.engine_model import parts
from serve_apps.engine_model.cost import architecture
from serve_apps.engine_model.cost.step_time import roofline
from tests.support.virtual.engines import QWEN, specs

SIZES = yaml.safe_load((Path(__file__).parents[3] / "data" / "model_sizes.yaml").read_text())
NO_INDEXER: dict[str, int] = {"index_heads": 0, "index_head_dim": 0, "index_topk": 0}
LLAMA = "llama31_405b_fp8"
DEEPSEEK, KIMI = "deepseek_v32_fp8", "kimi_k25_int4"


def model(name: str) -> Model:
    return specs(name).model


def kv_tokens(experiment: Experiment) -> int:
    spec, *others = parts(experiment)
    return architecture.kv_blocks(spec, *others) * spec.block_size


@pytest.mark.parametrize(("name", "total", "active"), SIZES["parameters"])
def test_parameters(name: str, total: int, active: int) -> None:
    counted = replace(model(name), **NO_INDEXER)
    assert architecture.total_parameters(counted) == total
    assert architecture.active_parameters(counted) == active


@pytest.mark.parametrize(
    ("name", "tensor_parallel", "changes", "ratio"),
    [(DEEPSEEK, 8, NO_INDEXER, 1.18), (DEEPSEEK, 8, {}, 1.37), (KIMI, 4, {}, 1.09), (LLAMA, 8, {}, 1.0)],
)
def test_every_gpu_computes_mlas_down_projections_and_the_indexer_whole(
    name: str, tensor_parallel: int, changes: dict[str, int], ratio: float
) -> None:
    chosen = replace(model(name), **changes)
    cut = architecture.linear_flop_per_token(replace(chosen, **NO_INDEXER)) / tensor_parallel
    result = architecture.linear_flop_per_gpu(chosen, tensor_parallel)
    assert result / cut == pytest.approx(ratio, abs=0.005)
    assert architecture.linear_flop_per_gpu(chosen, 1) == architecture.linear_flop_per_token(chosen)


def test_the_step_time_has_what_every_gpu_computes() -> None:
    """Prefill of DeepSeek at 100 % of the peak, experts even: FLOP of one GPU over its FP8 peak."""
    asked = specs(DEEPSEEK, layout="dp1_tp8")
    result = roofline(asked.model, asked.hardware, asked.layout)
    flop = architecture.linear_flop_per_gpu(asked.model, 8)
    assert asked.hardware.fp8_flop_per_s is not None
    share = asked.model.step_time.gemm_decode.value
    assert result.decode_gemm_token_s == pytest.approx(flop / asked.hardware.fp8_flop_per_s / share)


@pytest.mark.parametrize(("name", "changes", "expected"), SIZES["weight_bytes"])
def test_weight_bytes(name: str, changes: dict[str, Any], expected: int) -> None:
    assert architecture.weight_bytes(replace(model(name), **changes)) == expected


def test_metas_attention_and_two_layers_in_bf16_are_a_byte_more_each() -> None:
    attention, two_layers = 126 * (2 * 16384**2 + 2 * 16384 * 1024), 2 * 3 * 16384 * 53248
    scales = (401_646_551_040 - attention - two_layers) // (128 * 128) * 4
    result = architecture.weight_bytes(model(LLAMA))
    assert result == 410_051_936_256 + attention + two_layers + scales
    assert round(result / 1e9) == 487


def test_flops_of_a_prefill_and_of_its_decode() -> None:
    qwen = model(QWEN)
    linear, pair = architecture.linear_flop_per_token(qwen), architecture.attention_flop_per_pair(qwen)
    lm_head = 2 * qwen.vocab * qwen.hidden
    assert linear == 41_890_611_200
    assert pair == 3_080_192
    assert 5600 * linear + pair * 5600**2 / 2 == 282_884_833_280_000
    assert 140 * (linear + lm_head) + pair * (140 * 5600 + 140**2 / 2) == 8_483_994_337_280


@pytest.mark.parametrize(("name", "kv_cache", "tensor_parallel", "expected"), SIZES["kv_bytes"])
def test_kv_bytes_per_token_and_gpu(name: str, kv_cache: Any, tensor_parallel: int, expected: int) -> None:
    chosen = replace(model(name), kv_cache=kv_cache)
    assert architecture.kv_bytes_per_token(chosen, tensor_parallel) == expected


@pytest.mark.parametrize(
    ("name", "tensor_parallel", "table_gib"),
    [(DEEPSEEK, 8, 83), ("qwen3_vl_235b_bf16", 8, 58), (KIMI, 4, 145)],
)
def test_weights_per_gpu_are_a_little_below_what_the_paper_loaded(
    name: str, tensor_parallel: int, table_gib: float
) -> None:
    """arXiv 2603.10031, table 27; the rest is prediction layers and the vision tower."""
    layout = replace(specs().layout, tensor_parallel=tensor_parallel)
    gib = architecture.weight_bytes_on_gpu(model(name), layout) / 2**30
    assert 0.94 < gib / table_gib < 0.97


def test_memory_of_a_gpu_is_weights_activations_and_whole_blocks_of_kv() -> None:
    asked = specs()
    other_bytes = architecture.weight_bytes(asked.model) / 8 + SimulatedEngine().activation_bytes
    left_bytes, token_bytes = 0.9 * 262_128 * 2**20 - other_bytes, 24_064
    assert left_bytes - 16 * token_bytes < kv_tokens(asked) * token_bytes <= left_bytes


def test_kv_tokens_left_beside_the_weights() -> None:
    assert round(kv_tokens(specs(layout="dp1_tp8_ep8")) / 1e6, 2) == 8.72
    assert round(kv_tokens(specs(layout="dp2_tp4_ep4")) / 1e6, 2) == 7.49
    assert round(kv_tokens(specs(layout="dp2_tp4_ep4", hardware="h100")) / 1e3) == 410


def test_weights_that_do_not_fit_are_refused_in_one_line_with_a_remedy() -> None:
    with pytest.raises(ValueError, match="larger tensor_parallel") as refusal:
        kv_tokens(specs(LLAMA, layout="dp2_tp4_ep4", hardware="h100"))
    assert "\n" not in str(refusal.value)


def test_each_rank_holds_all_but_the_routed_experts_which_the_gpus_of_all_ranks_share() -> None:
    asked = specs(QWEN, layout="dp8_attention_ep8")
    model, layout = asked.model, asked.layout
    assert (layout.data_parallel, layout.gpus_per_replica) == (8, 8)
    routed, whole = architecture.routed_bytes(model), architecture.weight_bytes(model)
    result = architecture.weight_bytes_on_gpu(model, layout)
    assert result == pytest.approx(whole - routed + routed / 8, rel=1e-9)
    # Eight GPUs hold the routed experts once and the rest eight times.
    assert 8 * result == pytest.approx(routed + 8 * (whole - routed), rel=1e-9)
