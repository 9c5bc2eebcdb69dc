"""conf.kernels: their speed where that is published, and what is said elsewhere."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.results.json_border import to_tree
from conf import ConfigError, load
from conf.compose import dump
from conf.constants import calibration, constants, replaced, transfers
from conf.kernels import AITER_SPEED, BACKENDS, RELEASE_LN_SD, kernel_lines
from conf.specs.experiment import Experiment
from loadgen.__main__ import main
from loadgen.cli import engine_model
from loadgen.cli.words import all_kernels
from loadgen.predict.draws import uncertain
from loadgen.predict.grid import ratio
from loadgen.studies import published_tables
from serve_apps.engine_model.cost.step_time import Batch, Roofline, roofline
from serve_apps.engine_model.engine.kinds import EngineKind
from tests.benchmarks import backends
from tests.support.runs.verdict_trees import text_of
from tests.support.words.recipe_words import resolve

STEP = "engine.kernel_ratio.step"
QUICK = ("search.budget_s=600",)
BATCH = Batch(decode_tokens=64, context_tokens=400_000, sequences=64)
DATA = Path(__file__).parents[1] / "data"
OF_RECIPES = yaml.safe_load((DATA / "attention_backends.yaml").read_text())
OFF, KIMI = "engine=simulated_triton", ("model=kimi_k25_int4", "layout=dp1_tp4")


def costs(experiment: Experiment) -> Roofline:
    return roofline(experiment.model, experiment.hardware, experiment.layout, experiment.engine.kernel_ratio)


def step_s(experiment: Experiment) -> float:
    return costs(experiment).duration_s(BATCH)


@pytest.mark.parametrize("subject", published_tables.PUBLISHED_MODELS, ids=lambda subject: subject.name)
def test_aiter_off_slows_the_models_down_that_were_fitted_with_it(
    subject: published_tables.PublishedModel,
) -> None:
    plain, on, off = (
        step_s(load([*subject.words, *more])) for more in ([], ["engine=simulated_aiter"], [OFF])
    )
    assert on == plain
    slower = AITER_SPEED[1] if load(subject.words).model.fitted_with == "aiter" else 1.0
    assert off == pytest.approx(plain * slower)


def test_the_published_range_of_aiters_speed_is_drawn_with_the_other_constants() -> None:
    experiment = load([OFF])
    assert STEP in uncertain(experiment) and not any(path.startswith("engine.") for path in constants(load()))
    drawn = replaced(experiment, {STEP: AITER_SPEED[2]})
    assert step_s(drawn) == pytest.approx(step_s(load()) * AITER_SPEED[2])
    assert STEP not in uncertain(drawn)
    assert math.log(AITER_SPEED[2] / AITER_SPEED[1]) == pytest.approx(
        1.96 * constants(experiment)[STEP].ln_sd[1], rel=1e-3
    )


def test_a_prediction_without_aiter_is_lower_within_the_published_range_and_says_so() -> None:
    experiments = [load([engine, "engine.drift_sd=0", *QUICK]) for engine in ("engine=simulated_aiter", OFF)]
    answers = [engine_model.predict(one, draws=0) for one in experiments]
    on, off = map(to_tree, answers)
    estimates = [tree["capacity"]["qps_per_node"]["value"] for tree in (on, off)]
    assert 1.0 < estimates[0] / estimates[1] < 1.12
    assert "kernels without AITER" in text_of(off) and "published for other models" in text_of(off)
    assert "in May 2025 vLLM 0.8.5 served" in text_of(off)
    assert "AITER" not in text_of(on)
    result = ratio((answers[1], experiments[1]), (answers[0], experiments[0]))
    assert result.value == pytest.approx(estimates[1] / estimates[0])


def test_what_aiter_would_give_a_model_fitted_without_it_is_said_to_be_unknown() -> None:
    experiment = load(["engine=simulated_aiter", *KIMI])
    assert kernel_lines(experiment) == [
        "kernels aiter: their speed is not in the model, the figures are those of its constants, whose "
        "kernels are Triton"
    ]
    assert kernel_lines(load([OFF, *KIMI])) == kernel_lines(load(KIMI)) == kernel_lines(load()) == []
    unknown = load([OFF, "model=tiny_qwen3_moe", "layout=dp1_tp1", "workload=smoke"])
    assert "whose kernels are unknown" in kernel_lines(unknown)[0]


@pytest.mark.slow
def test_a_saved_run_keeps_its_kernels_and_another_choice_replaces_them(tmp_path: Any) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text(dump(load([OFF, f"{STEP}.value=1.07"])))
    again = load([], base=saved)
    assert step_s(again) == pytest.approx(step_s(load()) * 1.07)
    assert step_s(load(["engine.kernels=fitted"], base=saved)) == step_s(load())


R1 = ("model=deepseek_r1_fp8", "layout=dp1_tp8")


@pytest.mark.parametrize(
    ("words", "release"),
    [
        ([*R1, "engine.version=SGLang 0.5.12"], "SGLang 0.5.12"),
        (["model=llama31_405b_fp8", "layout=dp1_tp8", "engine.version=vLLM 0.11.1"], "vLLM 0.11"),
        ([OFF, "engine.version=vLLM 0.8.5"], "vLLM 0.8 without AITER"),
    ],
)
def test_a_release_that_was_measured_moves_launches_and_whole_steps(words: list[str], release: str) -> None:
    experiment = load(words)
    plain = replace(experiment, engine=replace(experiment.engine, kernel_ratio=None))  # type: ignore[call-arg]
    launch, step = (experiment.model.posterior.releases[release][time][1] for time in ("launch", "step"))
    there, fit = costs(experiment), costs(plain)
    assert there.launch_s == pytest.approx(fit.launch_s * launch * step)
    assert there.decode_gemm_token_s == pytest.approx(fit.decode_gemm_token_s * step)
    assert not [transfer for transfer in transfers(experiment) if transfer.text.startswith("engine")]
    (line,) = kernel_lines(experiment)
    assert "launches take" in line and line.endswith("fitted to published rows of it")
    constant = constants(experiment)["engine.kernel_ratio.launch"]
    assert constant.low is not None and constant.low < constant.value


def test_a_release_that_nobody_measured_has_the_mean_of_those_that_were() -> None:
    experiment = load([*R1, "engine.version=SGLang 0.5.10"])
    times = experiment.model.posterior.releases.values()
    for time in RELEASE_LN_SD:
        mean = sum(math.log(own[time][1]) for own in times) / (len(times) + 1)
        constant = constants(experiment)[f"engine.kernel_ratio.{time}"]
        assert math.log(constant.value) == pytest.approx(mean) and constant.source.startswith("assumed")
    assert "assumed" in kernel_lines(experiment)[0]
    assert load([*R1, "engine.version=SGLang 2025-12"]).engine.kernel_ratio is None  # type: ignore[attr-defined]
    old, new = (load([OFF, f"engine.version=vLLM {version}"]) for version in ("0.8.5", "0.9.1"))
    assert step_s(load([OFF])) < step_s(new) < step_s(old)
    assert load(["engine.version=vLLM 0.9.1"]).engine.kernel_ratio.step.value == 1.0  # type: ignore[attr-defined]


def test_an_unknown_backend_is_said_beside_another_release() -> None:
    experiment = load(["engine.version=vLLM 0.9.1", "engine.attention_backend=ROCM_FANCY"])
    assert UNKNOWN in kernel_lines(experiment)
    both = load(["engine.version=vLLM 0.9.1", "engine.attention_backend=TRITON_ATTN"])
    assert both.engine.kernel_ratio.kv_read.value == BACKENDS["TRITON_ATTN"][0][1]  # type: ignore[attr-defined]


def test_a_calibration_holds_beside_other_kernels_and_has_no_constant_of_them(tmp_path: Any) -> None:
    layer = "model.step_time.layer_us"
    file = tmp_path / "constants.yaml"
    file.write_text(yaml.safe_dump(calibration(load(), {layer: constants(load())[layer]})))
    both = load([OFF, f"engine.constants={file}", "engine.version=vLLM 0.8.5"])
    assert step_s(both) == pytest.approx(step_s(load()) * AITER_SPEED[1])
    file.write_text(yaml.safe_dump(calibration(both, {STEP: constants(both)[STEP]})))
    with pytest.raises(ConfigError, match=f"'{STEP}' is no constant of the step time"):
        load([OFF, f"engine.constants={file}"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_known_backend_scales_reads_and_prefill_attention_alone(backend: str) -> None:
    experiment, plain = load([f"engine.attention_backend={backend}"]), load()
    cost, of = costs(experiment), costs(plain)
    read, attention = (ends[1] for ends in BACKENDS[backend])
    assert cost.context_token_s == pytest.approx(of.context_token_s * read)
    assert cost.attention_pair_s == pytest.approx(of.attention_pair_s * attention)
    assert (cost.launch_s, cost.weight_read_s, cost.decode_gemm_token_s) == (
        of.launch_s,
        of.weight_read_s,
        of.decode_gemm_token_s,
    )
    assert set(uncertain(experiment)) - set(uncertain(plain)) == {
        "engine.kernel_ratio.kv_read",
        "engine.kernel_ratio.attention",
    }
    machine = EngineKind.of(experiment.engine, experiment.model, experiment.hardware, experiment.layout)
    assert machine.costs == cost
    assert "a figure of Qwen3-235B on MI300X" in kernel_lines(experiment)[0]


@pytest.mark.slow
def test_the_shipped_ratios_lie_near_those_of_the_fit() -> None:
    for backend, (read, attention) in BACKENDS.items():
        result = backends.fitted(backend)
        assert read == pytest.approx(result.kv_read, rel=0.02)
        assert attention == pytest.approx(result.attention, rel=0.02)


UNKNOWN = (
    "attention backend ROCM_FANCY: its speed is not in the model, the figures are those of ROCM_AITER_FA"
)


@pytest.mark.parametrize(("given", "version", "backend", "known"), OF_RECIPES)
def test_a_recipe_says_its_backend_and_notes_one_whose_speed_is_unknown(
    given: list[str], version: str, backend: str, known: bool
) -> None:
    result = resolve(given, version)
    assert result.attention.upper() == backend
    assert bool(result.unknown_speed) == (not known)
    assert (result.unknown_speed in result.notes) == (not known)


def test_an_emulated_vllm_has_the_steps_of_the_backend_that_its_recipe_names() -> None:
    from serve_apps.vllm_emulated.gpu import EmulatedGpu

    experiment = load(["engine=vllm_emulated"])
    parts: Any = experiment.engine, experiment.model, experiment.hardware, experiment.layout
    own, slow, same = (
        EmulatedGpu.from_specs(*parts, *backend) for backend in ([], ["TRITON_ATTN"], ["ROCM_FANCY"])
    )
    ratio = BACKENDS["TRITON_ATTN"][0][1]
    assert slow.costs.context_token_s == pytest.approx(own.costs.context_token_s * ratio)
    assert same == own


def test_a_dry_run_of_vllm_says_a_backend_whose_speed_is_unknown(capsys: Any) -> None:
    words = ["engine=vllm", "cluster=mi325x_1n"]
    assert main(["sweep", "--dry-run", *words, "engine.args.attention_backend=ROCM_FANCY"]) == 0
    assert f"# {UNKNOWN}\n" in capsys.readouterr().out
    assert main(["sweep", "--dry-run", *words]) == 0
    assert "its speed is not in the model" not in capsys.readouterr().out
    with_it, without = (load([*words, *more]) for more in (["engine.args.attention_backend=ROCM_FANCY"], []))
    assert all_kernels([with_it, without, with_it]) == [UNKNOWN]
