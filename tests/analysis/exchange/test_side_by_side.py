"""analysis.exchange.compared: a ratio of what is claimed, none of what is void, warnings."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import Run, RunError, load_run
from analysis.capacity.paired_ratio import Ratio, unpaired
from analysis.exchange import compare
from analysis.results.json_border import to_tree
from analysis.stats.estimate import Estimate, span
from analysis.views import side_by_side
from conf import Experiment
from conf.compose import dump
from tests.support.runs.golden import GOLDEN, changed, sweep_json
from tests.support.words.words import TABLES

FOREIGN = Path(__file__).parents[2] / "data" / "foreign"
RATIO = to_tree(Ratio(Estimate(1.25, 1.2, 1.3), {}, 6, None, unlike=False))
OPEN = sweep_json(GOLDEN)["capacity"] | {"open_above": True}
OTHER = {"value": 9.0, "low": 8.5, "high": 9.5, "certified": 8.6}


def made(path: Path, asked: Any = None, **sweep: Any) -> Path:
    """A copy of the golden run with another configuration and another conclusion."""
    if "qps_per_node" in sweep:
        unjoined = {"qps_per_node": sweep.pop("qps_per_node"), "by_noise": None, "constants": None}
        sweep["capacity"] = sweep_json(GOLDEN)["capacity"] | unjoined
    changed(path, **sweep)
    if asked:
        (path / "config.yaml").write_text(dump(asked(load_run(path).config)))
    return path


def tp4(experiment: Experiment) -> Experiment:
    layout = replace(experiment.layout, name="dp2_tp4_ep4", tensor_parallel=4, replicas_per_node=2)
    return replace(experiment, layout=layout, out="elsewhere", run="other")


def test_two_runs_have_the_ratio_of_their_independent_capacities(tmp_path: Path) -> None:
    other = made(tmp_path / "tp4", tp4, qps_per_node=OTHER)
    text = str(side_by_side.answer([GOLDEN, other]))
    q = load_run(GOLDEN).verdict.capacity.sampling  # type: ignore[union-attr]
    ratio = unpaired(q, Estimate(9.0, 8.5, 9.5))
    assert f"capacity B / A: {span(ratio)} (95 %, measured apart): higher" in text
    assert ["layout.tensor_parallel", "8", "4"] in [line.split() for line in text.splitlines()]
    assert "WARNING" not in text and "\n    out " not in text and "\n    run " not in text
    assert "A  golden_run: SIMULATED, VALID  3.32 QPS per node, joint 95 %" in text
    assert "B  tp4: SIMULATED, VALID  9.00 QPS per node, sampling noise alone: 95 %" in text
    back = str(side_by_side.answer([other, GOLDEN]))
    inverse = Estimate(1 / ratio.value, 1 / (ratio.high or 0.0), 1 / (ratio.low or 0.0))
    assert f"capacity B / A: {span(inverse)} (95 %, measured apart): lower" in back


def test_p90s_are_laid_beside_each_other_at_common_rates(tmp_path: Path) -> None:
    text = str(side_by_side.answer([GOLDEN, made(tmp_path / "same")]))
    assert "nothing of the configuration differs" in text
    rows = [line.split() for line in text.splitlines()]
    for line in load_run(GOLDEN).windows().to_pylist():
        rate, ttft = line["rate_qps_per_node"], line["ttft_p90_ms"]
        row = next(row for row in rows if row[0] == f"{rate:.3f}")
        assert row[:4] == [f"{rate:.3f}", f"{rate:.3f}", f"{ttft:.1f}", f"{ttft:.1f}"]


@pytest.mark.parametrize(("ours", "theirs", "expected"), TABLES["rates of two runs"])
def test_rates_are_paired_nearest_with_nearest(
    ours: list[float], theirs: list[float], expected: list[list[int]]
) -> None:
    assert side_by_side.nearest(ours, theirs) == [tuple(pair) for pair in expected]


def faster(experiment: Experiment) -> Experiment:
    return replace(experiment, slo=replace(experiment.slo, name="strict", tpot_p90_ms=50.0))


def shorter(experiment: Experiment) -> Experiment:
    tokens = replace(experiment.workload.input_tokens, mean=1000)
    return replace(experiment, workload=replace(experiment.workload, name="short", input_tokens=tokens))


@pytest.mark.parametrize(
    ("asked", "key"), [(faster, "slo.tpot_p90_ms"), (shorter, "workload.input_tokens.mean")]
)
def test_two_questions_are_warned_of_by_their_keys(asked: Any, key: str, tmp_path: Path) -> None:
    text = str(side_by_side.answer([GOLDEN, made(tmp_path / "other", asked)]))
    (warning,) = [line for line in text.splitlines() if "WARNING" in line]
    assert warning == f"  WARNING: {key} differs: the ratio is of two questions, no merit of either side"
    assert text.index(warning) < text.index("capacity B / A")


@pytest.mark.parametrize(
    ("sweep", "why"),
    [
        ({"valid": False, "exit_code": 4, "reason": "client_limited"}, "is VOID: client_limited"),
        ({"capacity": None}, "measured no capacity"),
        ({"capacity": OPEN, "exit_code": 6}, "has an open end: a bound, not a number"),
    ],
)
def test_no_ratio_is_made_of_what_is_not_claimed(sweep: dict[str, Any], why: str, tmp_path: Path) -> None:
    other = made(tmp_path / "other", **sweep)
    assert f"no ratio B / A: B (other) {why}" in str(side_by_side.answer([GOLDEN, other]))
    text = str(side_by_side.answer([other, GOLDEN]))
    assert f"no ratio B / A: A (other) {why}" in text and "capacity B / A" not in text


def test_a_run_beside_itself_is_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    for refused in (
        lambda: str(side_by_side.answer([GOLDEN, Path()])),
        lambda: compare(load_run(GOLDEN), load_run(".")),
    ):
        with pytest.raises(RunError, match="golden_run is given twice; compare needs different runs"):
            refused()


def test_a_killed_run_stands_beside_without_a_ratio(tmp_path: Path) -> None:
    other = made(tmp_path / "other")
    (other / "sweep.json").unlink()
    (other / "windows.parquet").unlink()
    text = str(side_by_side.answer([GOLDEN, other]))
    assert "B  other: UNFINISHED" in text and "no ratio B / A: B (other) did not end" in text
    assert "no rate per node was offered by both A and B" in text


def studied(path: Path, kind: str, **more: Any) -> Path:
    """A study of two parts, a and b."""
    made(path / "a")
    made(path / "b", tp4, qps_per_node=OTHER)
    row = {"exit_code": 0, "seed": 1, "binding": "tpot", "qps_per_node": OTHER}
    parts = [{"name": name} | row for name in "ab"]
    sweep = json.loads((GOLDEN / "sweep.json").read_text())
    tree = sweep | {"study": kind, "state": "ended", "names": ["a", "b"], "parts": parts} | more
    (path / "study.json").write_text(json.dumps(tree))
    shutil.copy(path / "a" / "config.yaml", path / "config.yaml")
    return path


def test_the_sides_of_a_comparison_have_its_paired_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = studied(tmp_path / "ab", "compare", ratio=RATIO)
    paired = "capacity B / A: 1.25 [1.20, 1.30] (95 %, the same requests on both): higher"
    text = str(side_by_side.answer([study]))
    assert paired in text and "A  ab/a: SIMULATED, VALID" in text
    turned = str(side_by_side.answer([study / "b", study / "a"]))
    assert "capacity B / A: 0.800 [0.769, 0.833] (95 %, the same requests on both): lower" in turned
    tree = json.loads((study / "study.json").read_text())
    monkeypatch.chdir(study / "a")
    assert "capacity B / A: 1.25 [1.20, 1.30]" in str(side_by_side.answer([Path(), Path("../b")]))
    comparison = compare(load_run("."), load_run("../b"))
    assert comparison.paired and comparison.estimate == Estimate(1.25, 1.2, 1.3)
    (study / "study.json").write_text(json.dumps(tree | {"valid": False}))
    assert "measured apart" in str(side_by_side.answer([study]))


def test_a_study_that_pools_is_one_side_and_a_matrix_is_its_cells(tmp_path: Path) -> None:
    pooled = studied(tmp_path / "pooled", "deployments", evidence="2 deployments", between=None)
    assert str(side_by_side.answer([GOLDEN, pooled])).startswith("COMPARE  2 sides")
    matrix = studied(tmp_path / "matrix", "matrix")
    text = str(side_by_side.answer([GOLDEN, matrix]))
    assert text.startswith("COMPARE  3 sides")
    assert "B  matrix/a: SIMULATED, VALID" in text and "capacity C / A" in text


def test_results_of_other_tools_are_laid_beside_ours_without_a_ratio() -> None:
    text = str(side_by_side.answer([GOLDEN, FOREIGN / "vllm-0.32.0.json", FOREIGN / "guidellm-0.8.1.json"]))
    assert text.startswith("COMPARE  4 sides")
    assert text.count("is another tool's result, which claims no capacity") == 3
    assert "capacity" not in text.replace("claims no capacity", "")
    rows = [line.split() for line in text.splitlines()]
    assert "A window 4" in text and ["B", "9.89", "30", "49.0", "/", "inf", "/", "inf"] in [
        row[:8] for row in rows
    ]
    assert "B: due times are not reported" in text and "C: its planned times are reported" in text


def test_two_runs_in_a_notebook_have_the_ratio_that_is_printed(tmp_path: Path) -> None:
    golden, other = load_run(GOLDEN), load_run(made(tmp_path / "same"))
    comparison = compare(golden, other)
    printed, (low, high) = f"{span(comparison.estimate)} (95 %, measured apart)", comparison.estimate.ends
    assert low and high and low < 1 < high and printed in str(side_by_side.answer([GOLDEN, other.path]))
    with pytest.raises(RunError, match="no ratio B / A: B .* did not end"):
        compare(golden, Run(other.path, other.manifest, None))


def test_one_run_alone_is_no_comparison() -> None:
    with pytest.raises(RunError, match="compare needs two or more; give another RUN beside"):
        str(side_by_side.answer([GOLDEN]))
