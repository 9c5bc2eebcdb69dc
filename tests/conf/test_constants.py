"""conf.constants: intervals, replacement, a calibration as a file, and what lies outside of a fit."""

import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from conf import ConfigError, load
from conf.compose import dump
from conf.constants import Covariance, calibration, constants, covariance, overlay, replaced, transfers
from conf.kernels import RELEASE_LN_SD, TABLE
from conf.specs.experiment import Constant, Efficiency, Experiment, StepTime
from conf.words import ROOT, groups
from loadgen.predict.draws import drawn
from loadgen.studies.published_tables import PUBLISHED_MODELS, PublishedModel
from serve_apps.engine_model.cost.step_time import Batch, roofline

DATA = Path(__file__).parents[1] / "data"
LAYER, LINK = "model.step_time.layer_us", "hardware.efficiency.link"
DEPLOYMENT = "model.step_time.deployment_scale"
PLAIN = load()
FITTED = {
    LAYER: Constant(92.0, "us", "fit", 90.0, 94.5),
    LINK: Constant(0.7, "share of raw", "fit", 0.65, 0.76),
}
EXACT = yaml.safe_load((DATA / "exact_sources.yaml").read_text())
KNOWN = Covariance((LAYER, LINK), ((1.6e-4, -2e-4), (-2e-4, 1.5e-3)))


def written(tree: dict[str, Any], folder: Path) -> str:
    path = folder / "constants.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return f"engine.constants={path}"


def test_an_interval_is_that_of_a_split_normal_in_ln() -> None:
    below, above = Constant(100, "us", "test", 70, 130).ln_sd
    assert 100 * math.exp(-1.959964 * below) == pytest.approx(70)
    assert 100 * math.exp(1.959964 * above) == pytest.approx(130)
    assert Constant(1.0, "ratio", "test", 0.6, 1.0).ln_sd[1] == 0
    assert Constant(0.0, "ms", "test").ln_sd == (0, 0)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((-1, None, None), "value=-1 us: a constant must be finite and not negative"),
        ((math.nan, None, None), "must be finite"),
        ((5, 4, None), "give low and high together"),
        ((5, 6, 7), "value=5 us must lie between low=6 and high=7"),
        ((0, 0, 7), "which are positive"),
    ],
)
def test_a_constant_outside_its_interval_is_refused(numbers: tuple[Any, ...], message: str) -> None:
    value, low, high = numbers
    with pytest.raises(ValueError, match=message):
        Constant(value, "us", "test", low, high)


def test_every_constant_has_a_key_and_the_defaults_an_interval() -> None:
    known = constants(PLAIN)
    assert len(known) == len(fields(StepTime)) + len(fields(Efficiency))
    assert known[LAYER] is PLAIN.model.step_time.layer_us
    assert known[LINK] is PLAIN.hardware.efficiency.link
    exact = [path for path, constant in known.items() if constant.low is None]
    assert exact == ["model.step_time.step_ms", "model.step_time.image_token_us"]


@pytest.mark.parametrize(
    "path",
    sorted(ROOT.glob("model/*.yaml")) + sorted(ROOT.glob("hardware/*.yaml")),
    ids=lambda path: path.stem,
)
def test_every_constant_has_its_evidence_and_an_interval_unless_it_cannot_matter(path: Path) -> None:
    tree = yaml.safe_load(path.read_text())
    entries = tree["step_time"] if "step_time" in tree else tree["efficiency"]
    assert set(entries) == {field.name for field in fields(StepTime if "step_time" in tree else Efficiency)}
    for name, entry in entries.items():
        assert Constant(**entry).low is not None or entry["source"] in EXACT, name


def test_replaced_values_are_exact_and_the_rest_stays() -> None:
    drawn = replaced(PLAIN, {LAYER: 999.0, LINK: 0.1})
    assert constants(drawn)[LAYER] == Constant(999.0, "us", constants(PLAIN)[LAYER].source)
    assert drawn.hardware.efficiency.link.value == 0.1
    assert replaced(drawn, {}) == drawn
    others = [path for path in constants(PLAIN) if path not in (LAYER, LINK)]
    assert all(constants(drawn)[path] == constants(PLAIN)[path] for path in others)
    with pytest.raises(ValueError, match=r"'model\.layers' is no constant"):
        replaced(PLAIN, {"model.layers": 3})


def test_a_word_makes_a_constant_exact() -> None:
    given = load([f"{LAYER}.value=500"])
    assert constants(given)[LAYER] == Constant(500.0, "us", f"given as {LAYER}.value")


def test_a_calibration_replaces_values_and_stays_with_the_saved_run(tmp_path: Path) -> None:
    word = written(calibration(PLAIN, FITTED, KNOWN), tmp_path)
    calibrated = load([word])
    assert {path: constants(calibrated)[path] for path in FITTED} == FITTED
    assert covariance(calibrated) == KNOWN
    saved = tmp_path / "config.yaml"
    saved.write_text(dump(calibrated))
    (tmp_path / "constants.yaml").unlink()
    assert load(base=saved) == calibrated


def test_what_is_exact_has_no_covariance(tmp_path: Path) -> None:
    word = written(calibration(PLAIN, FITTED, KNOWN), tmp_path)
    assert covariance(load([word, f"{LINK}.value=0.7"])) == Covariance((LAYER,), ((1.6e-4,),))
    assert covariance(replaced(load([word]), {LAYER: 1.0, LINK: 1.0})) is None
    assert covariance(PLAIN) is None


NAMES = {"model": PLAIN.model.name, "hardware": PLAIN.hardware.name}
UNITS = {path: constant.unit for path, constant in constants(PLAIN).items()}
GOOD = calibration(PLAIN, FITTED, KNOWN)
BAD = yaml.safe_load((DATA / "refused_calibrations.yaml").read_text())


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message for _, message in BAD])
def test_a_calibration_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        overlay(GOOD | changes, NAMES, UNITS)
    assert "\n" not in str(caught.value)


def test_the_refusal_names_the_file(tmp_path: Path) -> None:
    word = written({**GOOD, "hardware": "MI300X"}, tmp_path)
    with pytest.raises(ConfigError, match=f"^{word}: was calibrated for hardware MI300X, not MI325X$"):
        load([word])
    with pytest.raises(ConfigError, match="^cannot read "):
        load(["engine.constants=nowhere.yaml"])


def test_a_draw_beyond_the_peak_is_the_peak() -> None:
    assert replaced(PLAIN, {LINK: 1.3}).hardware.efficiency.link.value == 1


@pytest.mark.parametrize("subject", PUBLISHED_MODELS, ids=lambda subject: subject.name)
def test_the_joint_posterior_spreads_a_decode_step_far_less_than_its_constants_alone(
    subject: PublishedModel,
) -> None:
    """Batch of 64 at 600 tokens on the paper's GPU, by 200 draws from the intervals as they are shipped."""
    experiment = load(["hardware=mi325x", *subject.words])
    model, posterior = experiment.model, experiment.model.posterior
    names = list(posterior.correlations)
    assert posterior.hardware[0] == "MI325X"
    assert "cache hit" in posterior.rests_on
    assert all(any(constants(experiment)[name].ln_sd) for name in names)
    batch = Batch(decode_tokens=64, context_tokens=64 * 600, sequences=64)

    def spread(correlations: Any) -> float:
        fit = replace(posterior, correlations=correlations)
        draws = drawn(replace(experiment, model=replace(model, posterior=fit)), 200)
        each = (replaced(experiment, {name: draw[name] for name in names}) for draw in draws)
        steps_s = [roofline(it.model, it.hardware, it.layout).duration_s(batch) for it in each]
        low, high = np.quantile(steps_s, [0.025, 0.975])
        return float(high / low)

    together = spread(posterior.correlations)
    assert together < 1.2
    assert np.log(together) < 0.6 * np.log(spread({}))


# What lies outside of a fit is named, and widens the interval by what transfers miss.


def widths(experiment: Experiment, path: str) -> tuple[float, float]:
    return constants(experiment)[path].ln_sd


def test_the_models_of_conf_on_their_own_layouts_and_gpus_are_no_transfer() -> None:
    for name in groups()["model"]:
        fit = load([f"model={name}", "layout=dp1_tp1"]).model.posterior
        if fit.model:
            assert fit.layouts and fit.hardware
    fitted = "model.kv_cache=bf16"
    assert not transfers(load([fitted]))
    assert not transfers(
        load([fitted, "layout=dp2_tp4_ep4", "hardware=mi300x", "engine.version=vLLM 0.16.0rc1"])
    )


def test_kv_in_another_precision_is_named_and_adds_nothing() -> None:
    (only,) = transfers(load([]))
    assert only.text == "KV cache fp8 (fitted: bf16)"
    assert widths(load([]), only.path) == widths(load(["model.kv_cache=bf16"]), only.path)


@pytest.mark.parametrize(
    ("words", "text", "what"),
    [
        (["hardware=h200"], "GPU H200 SXM (fitted: MI300X, MI325X)", "GPU"),
        (["layout=dp4_tp2_ep2"], "layout TP2/EP2 (fitted: TP8/EP8, TP4/EP4)", "layout"),
        (["model.weights=bf16"], "weights bf16 (fitted: fp8)", "weights"),
        (["layout=1p1d_tp4_ep4"], "", "layout"),
    ],
)
def test_a_transfer_is_named_and_adds_its_spread(words: list[str], text: str, what: str) -> None:
    path, ln_sd = TABLE["transfers"][what].values()
    words = [*words, "model.kv_cache=bf16"]
    there = transfers(load(words))
    assert [one.text for one in there] == ([text] if text else [])
    for one in there:
        assert (one.path, one.ln_sd) == (path, ln_sd)
        own, wide = widths(load([]), path), widths(load(words), path)
        assert wide == pytest.approx(tuple(math.hypot(sd, ln_sd) for sd in own))
        assert constants(load(words))[path].source == f"assumed outside of the fit: {text}"


def test_an_engine_that_nobody_measured_is_named_and_has_the_spread_of_releases() -> None:
    experiment = load(["engine.version=SGLang 0.5.9", "model.kv_cache=bf16"])
    (only,) = transfers(experiment)
    assert only.text == "engine SGLang 0.5.9 (fitted: vLLM 0.14, vLLM 0.16)"
    for time, ln_sd in RELEASE_LN_SD.items():
        constant = constants(experiment)[f"engine.kernel_ratio.{time}"]
        assert constant.value == 1.0 and constant.ln_sd == pytest.approx((ln_sd, ln_sd))
        assert constant.source.startswith("assumed")


def test_another_model_and_another_gpu_widen_one_constant_together(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    qwen = yaml.safe_load((DATA / "checkpoints.yaml").read_text())["qwen"]
    smaller = {"num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32}
    config.write_text(json.dumps({**qwen, **smaller, "moe_intermediate_size": 768}))
    other = load([f"model.config_json={config}", "model.name=Mine", "hardware=h200"])
    texts = [transfer.text for transfer in transfers(other)]
    assert texts[2:] == ["weights bf16 (fitted: fp8)", "KV cache fp8 (fitted: bf16)"]
    assert texts[0].startswith("model Mine (fitted: Qwen3-235B") and texts[1].startswith("GPU H200")
    own = widths(load([]), DEPLOYMENT)
    spread = math.hypot(*(TABLE["transfers"][what]["ln_sd"] for what in ("model", "GPU", "weights")))
    assert widths(other, DEPLOYMENT) == pytest.approx(tuple(math.hypot(sd, spread) for sd in own))
    assert "; GPU H200" in constants(other)[DEPLOYMENT].source


def test_an_exact_constant_stays_exact() -> None:
    drawn = replaced(load(["hardware=h200"]), {DEPLOYMENT: 1.1})
    assert constants(drawn)[DEPLOYMENT].value == 1.1 and constants(drawn)[DEPLOYMENT].low is None
