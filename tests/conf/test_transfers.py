"""`conf.constants`: what lies outside of a fit is named, and widens the interval by what transfers miss."""

import json
import math
from pathlib import Path

import pytest
import yaml

from conf import Experiment, load
from conf.constants import constants, replaced, transfers
from conf.kernels import RELEASE_LN_SD, TABLE
from conf.words import groups

DEPLOYMENT = "model.step_time.deployment_scale"
DATA = Path(__file__).parents[1] / "data"


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
