"""loadgen/predict/draws.py: draws of constants, what a fit says of them, what two experiments share."""

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.planning.evidence import evidence_of
from analysis.results.json_border import to_tree
from analysis.results.predictions import PredictionVerdict
from analysis.stats.estimate import Estimate
from conf import ConfigError, Experiment, load
from conf.compose import dump
from conf.constants import calibration, constants, correlation
from conf.matrix import matrix
from conf.specs.experiment import Constant
from conf.specs.model import Posterior
from conf.words import groups
from loadgen.cli import engine_model, prediction
from loadgen.predict import answer, grid
from loadgen.predict.draws import NORMAL, drawn, layout_name
from loadgen.predict.grid import joint_ln_qps
from loadgen.predict.uncertainty import DRAWS, MANY_DRAWS
from tests.support.runs.verdict_trees import predict
from tests.support.virtual.known_answer import DEPLOYMENT, LAYER, LAYOUT, MODEL, STEP, joint, unsure

LINK, HBM = "hardware.efficiency.link", "hardware.efficiency.hbm"
TP4 = "layout=dp2_tp4_ep4"
EVERY = dict.fromkeys(constants(load()), 1.1)
MODELS = [name for name in groups()["model"] if not name.startswith("tiny")]


def normals(experiment: Experiment, count: int = DRAWS) -> dict[str, Any]:
    """The standard normals behind the draws; intervals here are alike to both sides."""
    known, sets = constants(experiment), drawn(experiment, count)
    return {
        path: np.log([one[path] / known[path].value for one in sets]) / known[path].ln_sd[1]
        for path in sets[0]
    }


@pytest.mark.parametrize(
    ("model", "hardware"), [*((model, "mi325x") for model in MODELS), (MODELS[0], "h100")]
)
def test_columns_of_a_models_constants_are_orthogonal_and_normal(model: str, hardware: str) -> None:
    columns = normals(unsure(EVERY, f"model={model}", f"hardware={hardware}"))
    assert list(columns) == list(EVERY)
    chance = np.corrcoef(list(columns.values())) - np.eye(len(columns))
    assert np.abs(chance).max() < 0.1
    strata = [NORMAL.inv_cdf((place + 0.5) / DRAWS) for place in range(DRAWS)]
    assert all(np.sort(column) == pytest.approx(strata) for column in columns.values())


def test_a_constant_has_the_same_errors_in_every_experiment_that_has_it() -> None:
    whole, part = unsure(EVERY), unsure({LAYER: 1.1, LINK: 1.1}, "workload.prefix_hit=.5", "seed=9")
    columns = normals(whole)
    assert all(column == pytest.approx(columns[path]) for path, column in normals(part).items())
    other = normals(unsure(EVERY, TP4))
    differing = [path for path, column in columns.items() if column != pytest.approx(other[path])]
    assert differing == [LAYOUT]


def test_layouts_differ_apart_and_deployments_together() -> None:
    words = ["layout=dp1_tp8_ep8", "layout=dp1_tp8", TP4]
    layouts = [unsure(EVERY, word) for word in words]
    assert [layout_name(layout.layout) for layout in layouts] == ["TP8/EP8", "TP8", "TP4/EP4"]
    scales = np.array([normals(layout)[LAYOUT] for layout in layouts])
    assert np.abs(np.corrcoef(scales) - np.eye(3)).max() < 0.1
    assert np.ptp([normals(layout)[DEPLOYMENT] for layout in layouts], axis=0).max() < 1e-9


def test_another_model_and_other_hardware_err_on_their_own_and_teams_alike() -> None:
    qwen, llama = (normals(unsure(EVERY, f"model={name}", "layout=dp1_tp8")) for name in MODELS[2:4])
    h100 = normals(unsure(EVERY, f"model={MODELS[2]}", "layout=dp1_tp8", "hardware=h100"))
    assert qwen[LINK] == pytest.approx(llama[LINK]) and qwen[LAYER] == pytest.approx(h100[LAYER])
    assert qwen[DEPLOYMENT] == pytest.approx(llama[DEPLOYMENT])
    apart = [np.corrcoef(qwen[LAYER], llama[LAYER]), np.corrcoef(qwen[LINK], h100[LINK])]
    assert max(abs(pair[0, 1]) for pair in apart) < 0.6


def test_hardware_of_one_fit_errs_alike() -> None:
    of_fit = joint(0.5, LAYER, LINK, ("MI325X", "H100 SXM"))
    ours, theirs = (normals(unsure(EVERY, word, posterior=of_fit)) for word in ("seed=1", "hardware=h100"))
    assert ours[LINK] == pytest.approx(theirs[LINK]) and ours[HBM] != pytest.approx(theirs[HBM])


@pytest.mark.parametrize("r", [-0.9, 0.0, 0.6, 1.0])
def test_constants_of_a_fit_are_drawn_together_and_keep_their_own_intervals(r: float) -> None:
    columns = normals(unsure({LAYER: 1.2, STEP: 1.5}, posterior=joint(r)))
    assert np.corrcoef(columns[LAYER], columns[STEP])[0, 1] == pytest.approx(r, abs=0.06)
    for column in columns.values():
        assert np.quantile(column, [0.025, 0.5, 0.975]) == pytest.approx([-1.96, 0, 1.96], abs=0.35)


def test_an_exact_constant_leaves_the_others_of_its_fit_as_they_were() -> None:
    both, one = (
        normals(unsure(dict.fromkeys(paths, 1.2), posterior=joint(0.9))) for paths in ((LAYER, STEP), (STEP,))
    )
    assert one[STEP] == pytest.approx(both[STEP]) and list(one) == [STEP]


def test_what_is_common_stays_so_in_a_fit() -> None:
    rows = {LAYOUT: [1.0, 0.5, 0.5], LAYER: [0.5, 1.0, 0.7], DEPLOYMENT: [0.5, 0.7, 1.0]}
    fit = Posterior("rows of a test", [], rows)
    words = [("model=qwen3_235b_a22b_fp8",), ("model=qwen3_235b_a22b_fp8", TP4), ("model=deepseek_v32_fp8",)]
    tp8, tp4, other = (normals(unsure(dict.fromkeys(rows, 1.1), *given, posterior=fit)) for given in words)
    assert all(tp8[DEPLOYMENT] == pytest.approx(columns[DEPLOYMENT]) for columns in (tp4, other))
    assert tp8[LAYER] == pytest.approx(tp4[LAYER]) and tp8[LAYER] != pytest.approx(other[LAYER])
    # Half of what differs between layouts goes with what does not.
    assert np.corrcoef(tp8[LAYOUT], tp4[LAYOUT])[0, 1] == pytest.approx(0.5**2 * 2 / 1.7, abs=0.1)


def test_a_fit_says_nothing_of_hardware_it_is_not_of() -> None:
    fits = [joint(0.9, LINK, LAYER, (name,)) for name in ("MI325X", "MI300X")]
    here, elsewhere = (normals(unsure({LAYER: 1.2, LINK: 1.2}, posterior=fit)) for fit in fits)
    assert np.corrcoef(list(here.values()))[0, 1] == pytest.approx(0.9, abs=0.05)
    assert abs(np.corrcoef(list(elsewhere.values()))[0, 1]) < 0.1
    assert here[LAYER] == pytest.approx(elsewhere[LAYER])


def test_constants_that_make_up_for_each_other_narrow_an_answer() -> None:
    def width(r: float) -> float:
        tree = predict(unsure({LAYER: 1.2, STEP: 1.44}, posterior=joint(r)), MODEL)
        q = tree["capacity"]["qps_per_node"]
        return math.log(q["high"] / q["low"])

    # Both alone make the same: together sqrt(2 + 2 r) times as much.
    assert width(-0.9) / width(0.0) == pytest.approx(math.sqrt(0.1), abs=0.06)


def test_a_grid_tells_what_differs_between_layouts_from_what_does_not() -> None:
    cells = matrix(["matrix.layout=[dp1_tp8_ep8,dp2_tp4_ep4]"])
    for path, spread in ((LAYOUT, 1.1 ** math.sqrt(2)), (DEPLOYMENT, 1.0)):
        result = grid.cells_of(cells, lambda words, spread=path: unsure({spread: 1.1}, *words))  # type: ignore[misc]
        tree = to_tree(grid.predicted(result, lambda one: answer.predict(one, MODEL), map))
        second = tree["cells"][1]
        assert second["ratio"]["value"] == pytest.approx(1.0, abs=0.01)
        assert second["ratio"]["high"] == pytest.approx(spread, rel=0.03)
        own = evidence_of(second).own_ln_sd
        assert own is not None and own == pytest.approx(math.log(spread) / 1.96, abs=0.015)


def test_a_calibration_takes_its_constants_out_of_the_models_fit(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(dump(unsure({LAYER: 1.2, STEP: 1.2, LINK: 1.2}, posterior=joint(0.9))))
    measured = {LAYER: Constant(92.0, "us", "fit", 90.0, 94.5)}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(calibration(load(), measured)))
    mine = load([f"engine.constants={file}"], base=base)
    known = correlation(mine)
    assert known is not None and known.paths == (STEP,)
    assert constants(mine)[LAYER] == measured[LAYER]
    assert abs(np.corrcoef(*(normals(mine)[path] for path in (LAYER, STEP)))[0, 1]) < 0.1
    base.write_text(dump(mine))
    file.unlink()
    assert load(base=base) == mine


BAD: list[tuple[dict[str, list[float]], str]] = [
    ({LAYER: [1.0, 0.5], STEP: [0.4, 1.0]}, "is not symmetric"),
    ({LAYER: [1.0, 1.5], STEP: [1.5, 1.0]}, "cannot be: it has the eigenvalue -0.5"),
    ({LAYER: [1.0, 0.5], STEP: [0.5, 0.9]}, "every constant must have 1 with itself"),
    ({LAYER: [1.0, 0.5]}, "needs a row of as many numbers as it has keys"),
    ({LAYER: [1.0, math.nan], STEP: [math.nan, 1.0]}, "must be finite"),
    ({"model.layers": [1.0]}, "'model.layers' is no constant of the step time"),
]


@pytest.mark.battery("wrong input")
@pytest.mark.parametrize(("rows", "said"), BAD, ids=[said for _, said in BAD])
def test_correlations_that_cannot_be_are_refused_in_a_line(
    rows: dict[str, list[float]], said: str, tmp_path: Path
) -> None:
    plain = load()
    saved = tmp_path / "config.yaml"
    saved.write_text(dump(replace(plain, model=replace(plain.model, posterior=Posterior("", [], rows)))))
    with pytest.raises(ConfigError, match=rf"model\.posterior\.correlations.*{re.escape(said)}") as caught:
        load(base=saved)
    assert "\n" not in str(caught.value)


def test_correlations_may_be_rounded_as_they_are_written(tmp_path: Path) -> None:
    rows = {LAYER: [1.0, 0.95, 0.9], STEP: [0.95, 1.0, 0.99], LINK: [0.9, 0.99, 1.0]}
    asked = unsure({LAYER: 1.2, STEP: 1.2, LINK: 1.2}, posterior=Posterior("", ["MI325X"], rows))
    saved = tmp_path / "config.yaml"
    saved.write_text(dump(asked))
    columns = normals(load(base=saved))
    assert np.corrcoef([columns[path] for path in rows]) == pytest.approx(
        np.array(list(rows.values())), abs=0.03
    )


@cache
def asked(*words: str) -> tuple[Experiment, PredictionVerdict]:
    experiment = prediction.checked([*words, "search.budget_s=1200"], None)
    return experiment, engine_model.predict(experiment, draws=DRAWS)


def shape(*words: str, alone: bool = False) -> np.ndarray:
    return joint_ln_qps(*asked(*words), alone=alone)


@pytest.mark.slow
def test_two_layouts_move_together() -> None:
    """Both rest on the same fitted constants, so that their ratio is known better than either."""
    one, other = shape("layout=dp1_tp8_ep8"), shape("layout=dp2_tp4_ep4")
    assert len(one) == MANY_DRAWS
    assert np.std(one - other) < 0.9 * np.hypot(np.std(one), np.std(other))
    budget = shape("layout=dp1_tp8_ep8", "layout.max_num_batched_tokens=4096")
    assert np.corrcoef(one, budget)[0, 1] > 0.9


@pytest.mark.slow
def test_the_draws_lie_around_the_estimate_as_wide_as_the_interval() -> None:
    drawn, q = shape("layout=dp1_tp8_ep8"), asked("layout=dp1_tp8_ep8")[1].capacity.qps_per_node  # type: ignore[union-attr]
    low, high = np.exp(np.quantile(drawn, (0.025, 0.975)))
    assert (low, high) == pytest.approx((q.low, q.high), rel=0.05)


@pytest.mark.slow
def test_draws_alone_are_shared_with_nobody() -> None:
    one, other = shape("layout=dp1_tp8_ep8"), shape("layout=dp1_tp8_ep8", alone=True)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.1
    assert np.std(other) == pytest.approx(np.std(one), rel=0.25)


def ratio(*words: str) -> tuple[Estimate | str, list[str]]:
    lines: list[str] = []
    result = engine_model.constants_ratio(load(words), lambda kind, text: lines.append(f"{kind}: {text}"))
    return result, lines


@pytest.mark.slow
def test_the_constants_of_the_engine_model_spread_the_capacity_around_one() -> None:
    result, told = ratio()
    assert isinstance(result, Estimate)
    assert 0.6 < result.low < result.certified < 0.95 and 1.05 < result.high < 1.6
    assert len(told) == 1 and told[0].startswith("constants: the engine model draws its constants")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["engine=vllm_emulated"], "the engine model answers for engine=simulated, not vllm_emulated"),
        (["engine.max_num_queued_reqs=8"], "does not model refused requests"),
        pytest.param(
            ["search.highest_qps=0.2"], "the engine model finds no interval", marks=pytest.mark.slow
        ),
    ],
)
def test_where_the_engine_model_has_no_answer_it_says_why(words: list[str], why: str) -> None:
    result, _ = ratio(*words)
    assert isinstance(result, str) and why in result and "\n" not in result
