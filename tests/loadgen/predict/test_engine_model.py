"""loadgen/cli/engine_model.py: gaps and queues, split nodes, which constants to measure first."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.results.experiment_facts import constants_basis, describe
from analysis.results.json_border import from_tree
from analysis.results.predictions import PredictionVerdict
from analysis.views import prediction as prediction_view
from conf import Experiment, load
from conf.constants import calibration, constants
from conf.specs.experiment import Constant
from loadgen.cli import engine_model
from loadgen.cli.engine_model import guess_qps, simulate
from loadgen.predict import replay
from loadgen.predict.answer import at_rate
from loadgen.predict.draws import drawn, layout_name
from loadgen.predict.operating_point import Effort, OperatingPoint, RateSimulator
from tests.support.runs.verdict_trees import predict, screen, text_of
from tests.support.virtual.known_answer import DEPLOYMENT, LAYER, LAYOUT, MODEL, STEP, joint, unsure


def point(rate_qps: float, *words: str) -> OperatingPoint:
    experiment: Experiment = load([*words, "cluster.session=fake"])
    return RateSimulator(experiment, engine_model.simulate, Effort.from_budget(120.0)).at(rate_qps)


def test_the_gaps_of_an_answer_alone_are_its_time_per_token() -> None:
    alone = point(0.05, "slo.itl_pooled_p50_ms=80", "slo.itl_p50_ms=80")
    ms = alone.latencies_ms
    assert alone.quantile_ms("itl_pooled_p50") == pytest.approx(np.median(ms["tpot"]), rel=0.02)
    assert len(ms["itl_pooled"]) == 139 * alone.requests


def test_pooled_gaps_hold_those_of_every_request() -> None:
    busy = point(3.0, "slo.itl_pooled_p99_ms=330", "slo.itl_p99_ms=330", "slo.itl_within=.9")
    own, gaps = busy.latencies_ms["itl"], busy.latencies_ms["itl_pooled"]
    assert gaps.max() >= np.nanmax(own) > gaps.mean() > gaps.min()
    assert gaps.mean() == pytest.approx(np.nanmean(busy.latencies_ms["tpot"]), rel=0.001)
    low_high = busy.interval_ms("itl_pooled_p99")
    assert low_high and low_high[0] < (busy.quantile_ms("itl_pooled_p99") or 0) < low_high[1]


def test_a_request_waits_in_the_queue_only_where_steps_are_full() -> None:
    alone, busy = (point(rate_qps, "slo.queue_p90_ms=500") for rate_qps in (0.05, 4.0))
    assert alone.quantile_ms("queue_p90") == 0.0
    queue = busy.latencies_ms["queue"]
    assert (queue >= 0).all() and (queue < busy.latencies_ms["ttft"]).all()
    assert (busy.quantile_ms("queue_p90") or 0.0) > 100.0


@pytest.mark.parametrize("layout", ["dp8_attention_ep8", "1p1d_tp4_ep4"])
def test_gaps_are_known_of_every_layout(layout: str) -> None:
    seen = point(0.5, f"layout={layout}", "slo.itl_p99_ms=330", "slo.itl_pooled_p99_ms=330").latencies_ms
    assert seen["itl_pooled"].max() >= np.nanmax(seen["itl"]) > 0
    assert seen["itl_pooled"].mean() == pytest.approx(np.nanmean(seen["tpot"]), rel=0.001)


RATE, LATENCY = "layout.transfer.gpu_bytes_per_s", "layout.transfer.latency_ms"


def test_transfers_are_drawn_alike_for_all_split_layouts_and_not_for_others() -> None:
    one, other, whole = (
        drawn(load([f"layout={name}"]), 48) for name in ("1p1d_tp4_ep4", "3p1d_tp2_ep2", "dp2_tp4_ep4")
    )
    for path in (RATE, LATENCY):
        assert [each[path] for each in one] == [each[path] for each in other]
        assert path not in whole[0]
    rates = np.array([each[RATE] for each in one])
    assert 1e10 < rates.min() < 2.1e10 and 6e10 < rates.max() < 9e10


def test_a_layout_whose_engines_are_alike_shares_their_pace() -> None:
    words = ["layout=dp2_tp4_ep4", "layout=1p1d_tp4_ep4", "layout=2p1d", "layout=dp1_tp8"]
    names = [layout_name(load([word]).layout) for word in words]
    assert names == ["TP4/EP4", "TP4/EP4", "TP2/EP2 + TP4/EP4", "TP8"]


def test_an_answer_says_what_it_takes_for_the_transfer_with_its_intervals() -> None:
    experiment = load(["layout=3p1d_tp2_ep2", "search.budget_s=60", "rate_qps=3"])
    split = at_rate(experiment, engine_model.MODEL, draws=0)
    text = screen(split)
    assert "50 [20, 64] GB/s per GPU and 5 [1, 25] ms per prompt, pulled" in text and "assumed" in text
    assert "prefill engines" in text
    result = split.forecast
    assert result is not None and result.prefill_busy is not None and result.busy is not None
    assert 0 < result.prefill_busy < 1
    assert sum(each or 0.0 for each in result.step_terms.values()) == pytest.approx(1.0)
    exact = load(["layout=1p1d_tp4_ep4", f"{RATE}.value=1e10", "layout.transfer_mode=write"])
    assert "10 (exact) GB/s per GPU" in constants_basis(exact).transfer
    assert constants_basis(load(["layout=dp1_tp8_ep8"])).transfer == ""


def test_more_prefill_engines_serve_more_long_prompts_by_guess_and_by_peaks() -> None:
    experiment = {name: load([f"layout={name}"]) for name in ("1p1d_tp4_ep4", "3p1d_tp2_ep2")}
    guesses = [guess_qps(one) or math.nan for one in experiment.values()]
    assert guesses[0] < guesses[1]
    machines = [engine_model.MODEL.machine(one) for one in experiment.values()]
    assert machines[0].peak_flop_per_s == machines[1].peak_flop_per_s
    assert [2 * one.layout.gpus_per_node for one in experiment.values()] == [16, 16]


@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_replay_on_a_split_node_has_the_gaps_of_its_decode_engines(mode: str) -> None:
    words = ["rate_qps=8", "requests=40", "seed=0", "workload.input_tokens.mean=2000"]
    split = load([*words, "layout=1p1d_tp4_ep4", f"layout.transfer_mode={mode}"])
    whole = load([*words, "layout=dp2_tp4_ep4"])
    times, others = (replay.played(one, simulate) for one in (split, whole))
    assert (times.first_s > times.sent_s).all()
    # No prompt is computed between the tokens of an answer.
    assert np.nanmax(times.own_itl_s) < 0.5 * np.nanmax(others.own_itl_s)


def shares(r: float) -> dict[str, float]:
    asked = unsure({LAYER: 1.2, STEP: 1.2}, posterior=joint(r))
    rows = predict(asked, MODEL, draws=2, sensitivity=True)["sensitivity"]
    return {row["path"]: row["share"] for row in rows}


def grounds(tree: dict[str, Any]) -> list[str]:
    """The lines on the constants of a prediction's tree."""
    verdict = from_tree(PredictionVerdict, tree, "a test")
    return [f"{name}: {value}" for name, value in prediction_view.constants_facts(verdict)]


@pytest.mark.parametrize("r", [0.0, -0.9])
def test_shares_add_up_and_count_what_constants_share_once(r: float) -> None:
    result = shares(r)
    # ln QPS falls by ln layer_us and by half of ln step_ms, whose sds are equal.
    variance = 1 + 0.25 + r
    assert result[LAYER] == pytest.approx((1 + r / 2) / variance, abs=0.05)
    assert result[STEP] == pytest.approx((0.25 + r / 2) / variance, abs=0.05)
    assert sum(result.values()) == pytest.approx(1.0)


def test_an_answer_says_what_is_measured_fitted_and_assumed() -> None:
    asked = unsure({LAYER: 1.2, STEP: 1.2, LAYOUT: 1.1, DEPLOYMENT: 1.1}, posterior=joint(0.5))
    times = asked.model.step_time
    guessed = replace(times.layout_scale, source="assumed: nobody tried")
    of_others = replace(times.deployment_scale, source="figures of others")
    times = replace(times, layout_scale=guessed, deployment_scale=of_others)
    asked = replace(asked, model=replace(asked.model, step_time=times))
    tree = predict(asked, MODEL, draws=2)
    measured, fitted, assumed = grounds(tree)
    assert measured == "measured: nothing of this machine"
    assert fitted.startswith("fitted: 2 constants jointly, to rows of a test; 1 constant to others' figures")
    assert assumed == "assumed: 1 constant (predict --sensitivity says which matter)"
    assert tree["constants"]["fitted"] == [STEP, LAYER] and tree["constants"]["assumed"] == [LAYOUT]
    assert f"  {measured}\n  {fitted}\n  {assumed}\n" in text_of(tree)
    tree = predict(asked, MODEL, draws=2, sensitivity=True)
    assert "1 constant; most of the variance: layout_scale " in grounds(tree)[2]


def test_a_calibration_is_a_measurement_of_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(calibration(load(), {LAYER: Constant(92.0, "us", "a fit", 90.0, 94.5)})))
    experiment = load([f"engine.constants={file}"])
    result = PredictionVerdict(
        experiment=describe(experiment),
        constants=constants_basis(experiment),
        calibration=str(file),
        exit_code=0,
    )
    (_, measured), *_ = prediction_view.constants_facts(result)
    assert measured == f"this machine, calibrated by {file}"


def test_every_uncertain_constant_is_one_of_the_kinds() -> None:
    kinds = constants_basis(load())
    told = [*kinds.measured, *kinds.fitted, *kinds.sourced, *kinds.assumed]
    assert sorted(told) == sorted(path for path, constant in constants(load()).items() if any(constant.ln_sd))


def test_a_fit_without_correlations_is_named_too() -> None:
    kinds = constants_basis(load(["model=llama2_70b_fp8", "layout=dp8_tp1"]))
    assert "model.step_time.gemm_decode" in kinds.fitted
    assert "MLPerf Inference 5.1" in kinds.rests_on and kinds.rests_on.endswith("by vLLM 0.9")
    assert not [path for path in kinds.fitted if path.startswith("hardware.")]
