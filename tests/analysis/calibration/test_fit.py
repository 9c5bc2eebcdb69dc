"""analysis.calibration finds constants again in runs of an engine that has them, and says what it cannot."""

import json
import math
import shutil
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from analysis import __main__ as root
from analysis import load_run
from analysis.calibration import fit as command
from analysis.results.json_border import to_tree
from analysis.results.verdicts import RunVerdict
from analysis.rows import records
from analysis.stats.map_fit import Z95, Floats, ParameterPrior, around, fit
from conf import Experiment, load
from conf.compose import dump
from conf.constants import constants, covariance, replaced
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.service.service import Replicas, Requests, Times, serve, serve_closed
from tests.support.runs.golden import GOLDEN
from tests.support.words.words import TABLES

TRUTH = {
    "model.step_time.layer_us": 118.0,
    "model.step_time.gemm_prefill": 0.28,
    "model.step_time.front_end_ms": 3.2,
    "hardware.efficiency.kv_read": 0.47,
}
BEGIN = ["model=qwen3_235b_a22b_fp8", "hardware=mi325x"]
"""Not the saved constants, which are the truth, but those that are published."""


@cache
def verdict(**end: Any) -> dict[str, Any]:
    """The tree of the verdict of a run that ended so."""
    known = load_run(GOLDEN).verdict
    assert known is not None
    return to_tree(RunVerdict(experiment=known.experiment, **end))


def recorded(
    folder: Path, concurrency: int, tokens: tuple[int, int, int], count: int, qps: float = 0.0, **truth: float
) -> Path:
    """The folder of a probe, as the load generator leaves it, of an engine whose steps scatter."""
    asked: dict[str, Any] = {"rate_qps": qps}
    if concurrency:
        asked = {"concurrency": concurrency, "requests": count}
    experiment = replaced(replace(load(["engine.step_noise_cv=0.03"]), **asked), truth)
    folder.mkdir()
    (folder / "config.yaml").write_text(dump(experiment))
    (folder / "manifest.json").write_text(json.dumps({"verb": "probe"}))
    (folder / "sweep.json").write_text(json.dumps(verdict(exit_code=0, valid=True)))
    times = served(experiment, concurrency, tokens, count, qps)
    due_ns = np.rint(times.sent_s * 1e9).astype(np.int64)
    rows = [
        {
            "seq": seq,
            "window_index": 0,
            "phase": "window" if seq >= concurrency else "transition",
            "status": "ok",
            "due_ns": int(due_ns[seq]),
            "first_token_offset_ns": round(float(times.first_token_s[seq]) * 1e9) - int(due_ns[seq]),
            "last_token_offset_ns": round(float(times.last_token_s[seq]) * 1e9) - int(due_ns[seq]),
            "requested_input_tokens": tokens[0],
            "requested_output_tokens": tokens[1],
            "output_tokens": tokens[1],
            "shared_tokens": tokens[2],
        }
        for seq in range(count)
    ]
    records.write(records.table(rows), folder / "requests" / "part-000.parquet")
    return folder


def served(
    experiment: Experiment, concurrency: int, tokens: tuple[int, int, int], count: int, qps: float
) -> Times:
    spec = experiment.engine
    machine = EngineKind.of(spec, experiment.model, experiment.hardware, experiment.layout)
    words = [np.full(count, length) for length in tokens]
    if concurrency:
        return serve_closed(machine, concurrency, words, seed=7)
    gaps_s = np.random.default_rng(3).exponential(1 / qps, count)
    return serve(machine, Requests(np.cumsum(gaps_s), words), Replicas(seed=7))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The recipe in small: prefill, decoding, decoding over long contexts, and traffic to check."""
    base = tmp_path_factory.mktemp("runs")
    made = [
        recorded(base / "r1-1", 1, (5600, 1, 0), 8, **TRUTH),
        recorded(base / "r2-1", 1, (16, 60, 0), 8, **TRUTH),
        recorded(base / "r2-64", 64, (16, 60, 0), 192, **TRUTH),
        recorded(base / "r3-64", 64, (5600, 60, 5570), 256, **TRUTH),
        recorded(base / "r4", 0, (5600, 140, 0), 150, 3.0, **TRUTH),
    ]
    return [str(path) for path in made]


@pytest.mark.slow
def test_the_constants_of_the_engine_that_was_measured_are_found_again(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fitted.yaml"
    assert root.main(["calibrate", *runs, *BEGIN, "--out", str(file)]) == 0
    text = capsys.readouterr().out
    found = yaml.safe_load(file.read_text())["constants"]
    for path, value in TRUTH.items():
        assert found[path]["low"] < value < found[path]["high"], path
    before = constants(load(BEGIN))["model.step_time.layer_us"]
    layer = found["model.step_time.layer_us"]
    assert math.log(layer["high"] / layer["low"]) < 0.75 * math.log(before.high / before.low)
    assert "calibrated on 4 runs" in layer["source"]
    # Nothing here sends an all-reduce over worse links: what cannot be told apart stays as it was.
    assert "expert_imbalance 1." in text and "NOT IDENTIFIED" in text
    held_out = float(text.partition("held out ")[2].partition(" %")[0])
    assert held_out < 5
    assert "open loops, which were not fitted" in text
    assert "WARNING" not in text and "no constant is identified" not in text
    again = load([f"engine.constants={file}"])
    assert constants(again)["model.step_time.layer_us"].value == pytest.approx(layer["value"])
    known = covariance(again)
    identified = {path for path, one in found.items() if "calibrated on" in one["source"]}
    assert "model.step_time.layer_us" in identified and identified == set(known.paths)
    # What no figure tells, a calibration must not make certain.
    untold = {path for path, one in found.items() if "not identified by 4 runs" in one["source"]}
    assert "hardware.efficiency.link" in untold and not untold & identified
    for path in untold:
        after, prior = (constants(one)[path] for one in (again, load(BEGIN)))
        assert (after.value, after.low, after.high) == (prior.value, prior.low, prior.high)
    assert np.linalg.eigvalsh(np.array(known.rows)).min() > 0


@pytest.mark.parametrize(("words", "says"), TABLES["words of calibrate"])
def test_what_cannot_be_calibrated_is_refused_in_one_line(
    runs: list[str], words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = Path(runs[0]).parent
    given = [str(base / word) if word.startswith(("r1", "r2")) else word for word in words] or ["seed=1"]
    assert root.main(["calibrate", *given]) == 2
    output = capsys.readouterr().err
    assert says in output and output.count("\n") == 1


def test_runs_of_two_machines_are_not_mixed(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = recorded(tmp_path / "other", 1, (16, 60, 0), 8)
    assert root.main(["calibrate", runs[1], str(other)]) == 2
    assert "has another model than" in capsys.readouterr().err


def test_a_void_run_is_refused_by_name(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(runs[1], tmp_path / "void"))
    for code, valid, taken in ((4, False, False), (0, False, False), (3, True, True)):
        tree = verdict(exit_code=code, valid=valid, reason="a load actor was late")
        (folder / "sweep.json").write_text(json.dumps(tree))
        if taken:
            assert command.observe(folder, partial(command.simulated, [])).path == folder
        else:
            assert root.main(["calibrate", str(folder)]) == 2
            assert "void is no valid measurement (a load actor was late)" in capsys.readouterr().err


def one_failed(folder: Path) -> None:
    rows = records.read(folder / "requests").to_pylist()
    rows[5]["status"] = "http_error"
    records.write(records.table(rows), folder / "requests" / "part-000.parquet")


def chats(folder: Path) -> None:
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["workload"] |= {"sessions": 9, "session_hit": 0.9}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def buffered(folder: Path) -> None:
    rows = records.read(folder / "requests").to_pylist()
    rows = [row | {"first_token_offset_ns": row["last_token_offset_ns"]} for row in rows]
    records.write(records.table(rows), folder / "requests" / "part-000.parquet")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (one_failed, "1 of 8 requests failed"),
        (chats, "knows nothing of what its sessions share (workload.session_hit=0.9)"),
        (buffered, "r2-1: 8 of 8 answers came in one piece"),
    ],
)
def test_runs_that_say_nothing_of_the_engine_are_refused_by_name(
    runs: list[str], tmp_path: Path, change: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(runs[1], tmp_path / "r2-1"))
    change(folder)
    assert root.main(["calibrate", str(folder)]) == 2
    assert message in capsys.readouterr().err


def test_the_fit_weighs_data_against_the_prior_by_their_scatter() -> None:
    """y = a + b x in ln; the third parameter is in no figure and keeps its prior, sides apart."""
    x = np.linspace(-1, 1, 40)
    noise = np.random.default_rng(1).normal(0, 0.02, 40)
    prior = ParameterPrior(np.zeros(3), np.full(3, 0.5), np.array([0.5, 0.5, 0.2]))
    fitted = fit(lambda at: at[0] + at[1] * x, 0.3 - 0.2 * x + noise, prior)
    assert fitted.at == pytest.approx([0.3, -0.2, 0.0], abs=0.02)
    assert 0.014 < fitted.scatter < 0.027
    assert fitted.sd[0] == pytest.approx(fitted.scatter / math.sqrt(40), rel=0.05)
    assert fitted.learnt[0] > 0.99
    assert abs(fitted.learnt[2]) < 1e-6
    assert [fitted.low[2], fitted.high[2]] == pytest.approx([-0.5 * Z95, 0.2 * Z95])


def test_a_tight_side_of_the_prior_does_not_stop_the_others() -> None:
    """The data pull the skewed parameter where it may not go, and the other must make up for it."""
    x = np.linspace(-1, 1, 20)
    prior = ParameterPrior(np.zeros(2), np.array([0.01, 0.5]), np.array([3.0, 0.5]))
    fitted = fit(lambda at: np.concatenate([at[0] + at[1] + x, 0.3 * at[1] + x]), np.tile(x, 2) - 0.4, prior)
    assert not fitted.stalled and fitted.at[1] < -0.4
    assert fitted.at[0] > -0.04
    assert fitted.low[0] > -0.04


def test_what_is_not_learnt_goes_back_to_the_prior_whole() -> None:
    """Of a + b only the sum is measured, and b is the one that the prior knows."""
    prior = ParameterPrior(np.zeros(2), np.array([1.0, 0.1]), np.array([1.0, 0.2]))
    fitted = fit(lambda at: np.full(20, at.sum()), np.full(20, 0.5), prior, enough=0.5)
    assert list(fitted.held) == [False, True]
    assert fitted.at == pytest.approx([0.5, 0.0], abs=1e-3)
    assert fitted.high[1] == pytest.approx(0.2 * Z95, rel=0.05)
    assert fitted.sd[0] > 0.09  # the spread of b is also that of a


def test_a_descent_that_gains_nothing_is_said_to_have_stalled() -> None:
    """Steps that are flat around the prior; another start sees the slope."""
    prior = ParameterPrior(np.zeros(1), np.ones(1), np.ones(1))

    def steps(at: Floats) -> Floats:
        return np.full(30, float(np.where(np.abs(at[0]) < 0.1, 0.0, at[0])))

    assert fit(steps, np.full(30, 0.4), prior).stalled
    fitted = fit(steps, np.full(30, 0.4), prior, [np.array([1.0])])
    assert fitted.stalled and fitted.at[0] == pytest.approx(0.4, abs=0.01)


def test_what_was_held_widens_what_was_fitted_beside_it() -> None:
    """ln a + ln b is measured four times: a alone is as open as b, and their sum is not."""
    data = np.zeros(4)
    prior = ParameterPrior(np.zeros(2), np.array([5.0, 0.2]), np.array([5.0, 0.2]))
    result = around(lambda ln: np.full(4, ln.sum()), data, prior, np.zeros(2), np.full(4, 0.02))
    assert result.at == pytest.approx([0.0, 0.0])
    assert result.sd == pytest.approx([0.2, 0.2], rel=0.02)
    assert result.correlation[0, 1] == pytest.approx(-1.0, abs=0.01)
    assert np.sqrt(result.covariance.sum()) == pytest.approx(0.01, rel=0.05)
