"""serve_apps/engine_model/cost/step_time.py against published steps, and for any batch."""

from dataclasses import astuple, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf import ConfigError, load
from conf.constants import replaced
from conf.specs.experiment import Experiment
from loadgen.cli.engine_model import parts
from serve_apps.engine_model.cost.node import guess_qps
from serve_apps.engine_model.cost.step_time import Batch, RanksTime, Roofline, ranks_time, roofline
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.service.service import serve_closed
from tests.support.virtual.engines import QWEN, ranks_step_s, specs

KIMI = "kimi_k25_int4"
ROUND_TIMES = {
    "step_ms": 2.0,
    "layer_us": 100.0,
    "gemm_decode": 0.0375,
    "gemm_prefill": 0.22,
    "gemm_rise_tokens": 1.0,
    "expert_read": 0.6,
    "expert_imbalance": 1.1,
    "expert_spread": 1.0,
    "prefill_layer_us": 0.0,
    "prefill_token_us": 0.0,
    "deployment_scale": 1.0,
    "layout_scale": 1.0,
}
ROUND = {f"model.step_time.{name}": value for name, value in ROUND_TIMES.items()} | {
    "hardware.efficiency.link": 0.75
}
"""Constants in round figures: what is said of the form does not hang on a fit."""


@cache
def experiment(layout: str = "dp1_tp8_ep8", hardware: str = "mi325x") -> Experiment:
    return replaced(specs(QWEN, layout, hardware), ROUND)


def with_layout(experiment: Experiment, **changes: Any) -> Experiment:
    return replace(experiment, layout=replace(experiment.layout, **changes))


def steps(experiment: Experiment) -> Roofline:
    return roofline(experiment.model, experiment.hardware, experiment.layout)


TP8 = steps(experiment())
TERMS = "launch weight_read expert_read decode prefill rise all_reduce kv_read attention host"


def terms(model: Roofline, batch: Batch) -> Any:
    """The terms of a step by name, in seconds."""
    return SimpleNamespace(**dict(zip(TERMS.split(), model.terms(batch), strict=True)))


def decode(batch: int, context: int = 5700) -> Batch:
    return Batch(decode_tokens=batch, context_tokens=batch * context, sequences=batch)


def prefill(tokens: int, context: int = 0) -> Batch:
    batch = Batch()
    batch.add_chunk(tokens, context)
    return batch


@pytest.mark.parametrize(("layout", "measured_ms"), [("dp1_tp8_ep8", 129), ("dp2_tp4_ep4", 162)])
def test_an_idle_prompt_of_2000_tokens_takes_what_was_measured(layout: str, measured_ms: float) -> None:
    """First requests of the published per-request rows (tests/benchmarks/published)."""
    machine = EngineKind.of(*parts(specs(layout=layout, hardware="mi300x")))
    alone = serve_closed(machine, 1, [np.array([tokens]) for tokens in (2000, 1000, 0)])
    assert (alone.first_token_s - alone.sent_s) * 1e3 == pytest.approx(measured_ms, rel=0.2)


def test_all_reduce_of_a_full_prefill_step() -> None:
    tp4 = steps(experiment(layout="dp2_tp4_ep4"))
    whole = terms(TP8, prefill(8192))
    sent_bytes = 8192 * 94 * 2 * 2 * (4096 * 2 / 8)
    assert whole.all_reduce == pytest.approx(sent_bytes / (6.4e10 * 0.75), abs=1e-4)
    assert terms(tp4, prefill(8192)).all_reduce == pytest.approx(2 * whole.all_reduce)


def test_behind_a_switch_the_peers_share_one_link() -> None:
    h100 = steps(experiment(hardware="h100"))
    sent_bytes = 94 * 2 * 2 * (4096 * 2 / 8) * 7
    assert h100.all_reduce_token_s == pytest.approx(sent_bytes / (4.5e11 * 0.75))


@pytest.mark.parametrize(
    ("codec", "layout", "smallest", "share"),
    [
        ("int8", "dp1_tp8_ep8", 512, 1.0625 / 2),
        ("int4", "dp1_tp8_ep8", 256, 0.5625 / 2),
        ("int8", "dp2_tp4_ep4", 2048, 1.0625 / 2),
        ("int6", "dp2_tp4_ep4", 512, 0.8125 / 2),
    ],
)
def test_quick_reduce_shrinks_large_all_reduces_only(
    codec: Any, layout: str, smallest: int, share: float
) -> None:
    asked = experiment(layout=layout)
    plain, quick = steps(asked), steps(with_layout(asked, quick_reduce=codec))
    below, above = prefill(smallest - 1), prefill(smallest)
    assert terms(quick, below).all_reduce == terms(plain, below).all_reduce
    assert terms(quick, above).all_reduce == pytest.approx(share * terms(plain, above).all_reduce)


def test_quick_reduce_is_for_a_mesh_and_for_the_simulated_engine() -> None:
    with pytest.raises(ValueError, match=r"not TP8 on H100 SXM; set layout\.quick_reduce=none"):
        steps(with_layout(experiment(hardware="h100"), quick_reduce="int8"))
    with pytest.raises(ConfigError, match="VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"):
        load(["engine=vllm", "layout.quick_reduce=int8"])


def test_a_mesh_has_one_link_per_peer() -> None:
    asked = experiment()
    with pytest.raises(ValueError, match="at most 8"):
        roofline(asked.model, asked.hardware, replace(asked.layout, tensor_parallel=16))


def test_one_token_reads_its_top_k_experts_and_a_large_batch_all() -> None:
    sliced = steps(experiment(layout="dp1_tp8"))
    assert terms(sliced, decode(1)).expert_read == pytest.approx(sliced.expert_read_s * 8 / 128)
    for model in (sliced, TP8):
        assert terms(model, decode(1000)).expert_read == pytest.approx(model.expert_read_s)


@pytest.mark.parametrize(("layout", "sliced"), [("dp1_tp8_ep8", "dp1_tp8"), ("dp2_tp4_ep4", "dp1_tp4")])
def test_the_fullest_gpu_reads_more_experts_than_the_mean_and_never_more_than_all(
    layout: str, sliced: str
) -> None:
    fullest, mean = (steps(experiment(layout=name)) for name in (layout, sliced))
    for tokens in (*range(1, 300), 1000, 16384):
        read_s = terms(fullest, decode(tokens)).expert_read
        assert terms(mean, decode(tokens)).expert_read <= read_s <= fullest.expert_read_s
    assert fullest.expert_read_s == pytest.approx(mean.expert_read_s)


def test_prefill_efficiency_rises_smoothly_from_that_of_decode() -> None:
    slow = steps(replaced(experiment(), {"model.step_time.gemm_rise_tokens": 200}))
    linear = [terms(slow, prefill(tokens)) for tokens in range(4097)]
    marginal_s = np.diff([spent.prefill + spent.rise for spent in linear]).tolist()
    assert marginal_s[0] == pytest.approx(slow.decode_gemm_token_s, rel=0.005)
    assert marginal_s[-1] == pytest.approx(slow.prefill_gemm_token_s, rel=0.001)
    falls = [a - b for a, b in zip(marginal_s, marginal_s[1:], strict=False)]
    assert min(falls) >= 0 and max(falls) < 0.006 * slow.decode_gemm_token_s


def test_a_step_with_prefill_costs_its_layers_once_and_its_tokens_on_every_layout() -> None:
    mixed = {"model.step_time.prefill_layer_us": 200.0, "model.step_time.prefill_token_us": 15.0}
    for layout in ("dp1_tp8_ep8", "dp2_tp4_ep4"):
        plain = experiment(layout=layout)
        before, after = steps(plain), steps(replaced(plain, mixed))
        pace = plain.hardware.efficiency.compute.value
        assert after.duration_s(decode(64)) == before.duration_s(decode(64))
        for tokens in (500, 4000):
            more_s = after.duration_s(prefill(tokens)) - before.duration_s(prefill(tokens))
            assert more_s == pytest.approx(94 * 200e-6 + tokens * 15e-6 / pace)


def test_a_gpu_at_another_pace_than_the_fits_computes_faster_and_reads_alike() -> None:
    plain = experiment()
    slow, fast = (steps(replaced(plain, {"hardware.efficiency.compute": pace})) for pace in (1.0, 1.25))
    computed = "decode_gemm_token_s", "prefill_gemm_token_s", "attention_pair_s"
    for name in computed:
        assert getattr(fast, name) == pytest.approx(getattr(slow, name) / 1.25)
    same = set(Roofline._fields) - {*computed, "prefill_rise_s"}
    assert all(getattr(fast, name) == getattr(slow, name) for name in same)
    of_this_gpu = load(["model=llama31_405b_fp8", "layout=dp1_tp8"])
    at_pace = replaced(of_this_gpu, {"hardware.efficiency.compute": 2.0})
    assert steps(at_pace) == steps(of_this_gpu)


def test_the_peak_is_that_of_the_weights_type() -> None:
    qwen, kimi = specs(QWEN), specs(KIMI)
    no_fp8 = replace(qwen.hardware, fp8_flop_per_s=None)
    assert roofline(kimi.model, no_fp8, kimi.layout) == steps(kimi)
    with pytest.raises(ValueError, match=r"set hardware\.fp8_flop_per_s="):
        roofline(qwen.model, no_fp8, qwen.layout)


@pytest.mark.parametrize("figure", ["bf16_flop_per_s", "link_bytes_per_s"])
def test_unknown_figures_refuse_to_be_used(figure: str) -> None:
    unknown: dict[str, Any] = {figure: None}
    with pytest.raises(ValueError, match=figure):
        steps(replace(experiment(), hardware=replace(experiment().hardware, **unknown)))


def test_a_chunk_attends_to_its_context_and_half_of_itself() -> None:
    assert prefill(100, context=400) == Batch(0, 100, 400, 100 * 400 + 100**2 / 2, 0)


def test_a_guess_grows_with_the_share_of_cached_prompt_and_is_none_for_unknown_hardware() -> None:
    asked = specs()
    cached = replace(asked.workload, prefix_hit=0.95)
    plain_qps = guess_qps(asked.workload, asked.model, asked.hardware, asked.layout)
    cached_qps = guess_qps(cached, asked.model, asked.hardware, asked.layout)
    assert plain_qps and cached_qps and 2 < cached_qps / plain_qps < 20
    assert (
        guess_qps(asked.workload, asked.model, experiment(hardware="mi308x").hardware, asked.layout) is None
    )


counts = st.integers(0, 8192)
batches = st.builds(Batch, counts, counts, st.integers(0, 10**7), st.floats(0, 1e9), st.integers(0, 1024))


@given(batches, batches)
def test_more_work_never_takes_less_time(small: Batch, more: Batch) -> None:
    large = Batch(*(one + other for one, other in zip(astuple(small), astuple(more), strict=True)))
    assert all(a <= b for a, b in zip(TP8.terms(small), TP8.terms(large), strict=True))
    assert TP8.duration_s(large) <= TP8.duration_s(small) + TP8.duration_s(more)


def test_cutting_a_prefill_costs_the_fixed_part_again_and_the_context_it_reads() -> None:
    parts = TP8.duration_s(prefill(4096)) + TP8.duration_s(prefill(4096, context=4096))
    fixed = TP8.launch_s + TP8.weight_read_s + TP8.expert_read_s + TP8.prefill_rise_s
    assert parts == pytest.approx(TP8.duration_s(prefill(8192)) + fixed + 4096 * TP8.context_token_s)


@given(batches, st.sampled_from(["none", "int4"]))
def test_the_terms_of_a_step_add_up_to_its_duration(batch: Batch, reduce: Any) -> None:
    model = steps(with_layout(experiment(), quick_reduce=reduce))
    assert model.duration_s(batch) == pytest.approx(sum(model.terms(batch)), rel=1e-12)


def ranks(layout: str = "dp8_attention_ep8", **changes: Any) -> RanksTime:
    asked = with_layout(specs(layout=layout), **changes)
    return ranks_time(asked.model, asked.hardware, asked.layout)


def test_one_data_parallel_rank_is_a_step_of_always() -> None:
    for layout in ("dp1_tp8_ep8", "dp2_tp4_ep4", "dp1_tp8"):
        plain = steps(specs(layout=layout))
        for batch in (Batch(60, 0, 60 * 3000, 0, 60), Batch(30, 5000, 30 * 3000, 5000 * 2500, 31)):
            assert ranks_step_s(ranks(layout), [batch]) == pytest.approx(plain.duration_s(batch), rel=1e-9)


def test_equal_ranks_take_what_the_balanced_step_says() -> None:
    time = ranks()
    each = Batch(8, 0, 8 * 3000, 0, 8)
    whole = Batch(64, 0, 64 * 3000, 0, 64)
    assert ranks_step_s(time, [each] * 8) == pytest.approx(time.balanced.duration_s(whole))
    assert steps(specs(layout="dp8_attention_ep8")) == time.balanced


def test_wider_ranks_read_less_of_attention_and_each_reads_its_share_of_all_experts() -> None:
    eight, four = ranks(), ranks(data_parallel=4, tensor_parallel=2)
    assert four.own.weight_read_s < eight.own.weight_read_s
    assert four.shared.expert_read_s == pytest.approx(eight.shared.expert_read_s)
    sliced = ranks(expert_parallel=False)
    assert (
        sliced.shared.expert_skew_s == 0
        and sliced.shared.decode_gemm_token_s < eight.shared.decode_gemm_token_s
    )


def test_gathering_the_tokens_of_all_ranks_costs_what_an_all_reduce_does_where_they_are_equal() -> None:
    """In a mesh each of two shots sends a GPU's own tokens over every link: 1/8 of all."""
    ffn_s = steps(specs()).all_reduce_token_s / 2
    assert ranks().own.all_reduce_token_s / 8 == pytest.approx(ffn_s)


@pytest.mark.parametrize("model", [KIMI, "llama31_405b_fp8", "deepseek_v32_fp8", "qwen3_vl_235b_bf16"])
def test_products_run_at_the_pace_of_the_fit_on_its_own_gpu_whatever_the_card_says_of_others(
    model: str,
) -> None:
    """A card without `paces`, of a saved run too, is of its GPU, though that one has a pace of its own."""
    own, other = (
        load([f"model={model}", "layout=dp1_tp8", f"hardware={gpu}"]) for gpu in ("mi325x", "mi300x")
    )
    without = replace(own.model, posterior=replace(own.model.posterior, paces={}))
    assert own.hardware.name == own.model.posterior.hardware[0] and own.hardware.efficiency.compute.value > 1
    assert roofline(without, own.hardware, own.layout) == steps(own)
    slower = steps(other).prefill_gemm_token_s / steps(own).prefill_gemm_token_s
    assert slower == pytest.approx(own.hardware.efficiency.compute.value, rel=1e-3)
