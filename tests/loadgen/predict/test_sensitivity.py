"""loadgen/predict/uncertainty.py: constants in the order in which to measure them, and their grounds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.results.asked import constants_basis, describe
from analysis.results.json_border import from_tree
from analysis.results.predictions import PredictionVerdict
from analysis.views import prediction as prediction_view
from conf import load
from conf.constants import calibration, constants
from conf.specs.experiment import Constant
from tests.support.runs.verdict_trees import predict, text_of
from tests.support.virtual.known_answer import DEPLOYMENT, LAYER, LAYOUT, MODEL, STEP, joint, unsure


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
    found = shares(r)
    # ln QPS falls by ln layer_us and by half of ln step_ms, whose sds are equal.
    variance = 1 + 0.25 + r
    assert found[LAYER] == pytest.approx((1 + r / 2) / variance, abs=0.05)
    assert found[STEP] == pytest.approx((0.25 + r / 2) / variance, abs=0.05)
    assert sum(found.values()) == pytest.approx(1.0)


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
    assert {kind: tree["constants"][kind] for kind in ("fitted", "assumed")} == {
        "fitted": [STEP, LAYER],
        "assumed": [LAYOUT],
    }
    assert f"  {measured}\n  {fitted}\n  {assumed}\n" in text_of(tree)
    tree = predict(asked, MODEL, draws=2, sensitivity=True)
    assert "1 constant; most of the variance: layout_scale " in grounds(tree)[2]


def test_a_calibration_is_a_measurement_of_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(calibration(load(), {LAYER: Constant(92.0, "us", "a fit", 90.0, 94.5)})))
    asked = load([f"engine.constants={file}"])
    found = PredictionVerdict(
        asked=describe(asked), constants=constants_basis(asked), calibration=str(file), exit_code=0
    )
    (_, measured), *_ = prediction_view.constants_facts(found)
    assert measured == f"this machine, calibrated by {file}"


def test_every_uncertain_constant_is_one_of_the_kinds() -> None:
    kinds = constants_basis(load())
    told = [*kinds.measured, *kinds.fitted, *kinds.sourced, *kinds.assumed]
    assert sorted(told) == sorted(path for path, it in constants(load()).items() if any(it.ln_sd))


def test_a_fit_without_correlations_is_named_too() -> None:
    kinds = constants_basis(load(["model=llama2_70b_fp8", "layout=dp8_tp1"]))
    assert "model.step_time.gemm_decode" in kinds.fitted
    assert "MLPerf Inference 5.1" in kinds.rests_on and kinds.rests_on.endswith("by vLLM 0.9")
    assert not [path for path in kinds.fitted if path.startswith("hardware.")]
