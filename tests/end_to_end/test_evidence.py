"""Published measurements of the default model: they are read, replayed and met by the constants of conf/."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from conf import load
from loadgen.predict.draws import DEPLOYMENT_SCALE, LAYOUT_SCALE
from tests.benchmarks import _default_fit as default_fit
from tests.benchmarks._published import (
    ATTENTION,
    CHARACTER,
    REQUESTS,
    Attainment,
    ClosedLoop,
    Ratio,
    Requests,
    Study,
    read,
)
from tests.benchmarks.evidence import Answer, answers, main, verdict

STUDIES = read()[0]


def of_its_team(study: Study) -> np.ndarray:
    return study.predict({DEPLOYMENT_SCALE: study.team.scale, LAYOUT_SCALE: 1.0})


@pytest.mark.parametrize(
    "study", [it for it in STUDIES if isinstance(it, Requests)], ids=lambda it: it.config
)
def test_one_set_of_constants_meets_the_requests_of_both_layouts(study: Requests) -> None:
    seen = of_its_team(study)
    ttft, gap = (np.subtract(*study.quantiles(column, seen)) for column in (0, 1))
    assert math.sqrt(np.mean(ttft**2)) < 0.06
    # A request on the other side of the step between gaps with prefill and without is no matter of digits.
    assert math.sqrt(np.mean(np.clip(gap, -0.3, 0.3) ** 2)) < 0.06
    known = np.log([row[0] for row in study.rows])
    assert np.corrcoef(known, seen[: len(known)])[0, 1] > 0.93  # other arrivals: below .3


@pytest.mark.parametrize(
    "study", [it for it in STUDIES if isinstance(it, Attainment)], ids=lambda it: it.configuration
)
def test_attainment_is_met_within_eight_points(study: Attainment) -> None:
    assert np.abs(of_its_team(study) - study.shares).max() < 0.08


def test_the_long_prompts_of_the_other_team_are_met() -> None:
    loops = [it for it in STUDIES if isinstance(it, ClosedLoop) and it.backend == "ROCM_AITER_FA"]
    assert len(loops) == 2
    for study in loops:
        assert np.abs(of_its_team(study) - [figure.scaled for figure in study.figures]).max() < 0.15


def test_two_tp4_serve_more_than_one_tp8_at_the_same_latency() -> None:
    (ratio,) = (it for it in STUDIES if isinstance(it, Ratio))
    (found,) = answers(ratio, 40)
    assert found.predicted > 0
    assert found.low < math.log(1.45) < found.high
    assert found.high - found.low < math.log(1.5)


def test_most_rows_lie_in_their_intervals_which_are_not_too_wide() -> None:
    found = [row for study in STUDIES for row in answers(study, 12)]
    inside = sum(row.inside for row in found)
    assert inside >= 0.9 * len(found)
    assert np.median([row.high - row.low for row in found]) / 2 < 0.2
    assert verdict(found)[-1].startswith(f"inside {inside} of {len(found)}; median error ")


def test_shapes_that_the_model_does_not_know_are_named(tmp_path: Path) -> None:
    file = tmp_path / "other.csv"
    file.write_text("configuration,rate_qps,slo_attainment_pct\n1xTP8,0.5,78\n1P1D-TP4-read,0.5,100\n")
    studies, skipped = read([file])
    assert [study.figures[0].label for study in studies] == ["1xTP8 attainment at 0.5 QPS"]
    assert skipped == ["1P1D-TP4-read: 1 rows of a shape that the model does not know yet"]


@pytest.mark.battery("wrong input")
@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "config,request,ttft_s,itl_s\n", "config,request\n1,2\n"])
def test_a_file_of_no_known_format_is_refused_in_a_line(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong.csv"
    file.write_text(text)
    monkeypatch.setattr(sys, "argv", ["evidence", str(file)])
    assert main() == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ") and told.count("\n") == 1


def test_backends_and_layouts_are_read() -> None:
    backends = {it.backend for it in read([ATTENTION])[0] if isinstance(it, ClosedLoop)}
    assert backends == {"ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN", "TRITON_ATTN", "ROCM_ATTN"}
    labels = [study.figures[0].label for study in read([CHARACTER])[0]]
    assert sorted(labels) == ["1xTP8 weights per GPU", "2xTP4 throughput over 1xTP8", "2xTP4 weights per GPU"]


def test_an_answer_of_a_share_counts_in_points() -> None:
    (study,) = (it for it in STUDIES if isinstance(it, Attainment) and it.configuration == "1xTP8")
    row = Answer(study.figures[0], 0.75, 0.7, 0.8)
    assert row.error == pytest.approx(-0.03)
    assert "-3.0 points" in row.line() and row.line().endswith("inside")


def test_the_shipped_constants_are_likely_and_others_are_not() -> None:
    problem = default_fit.Problem(tuple(read([REQUESTS])[0]))
    shipped = problem.shipped
    slower = shipped.copy()
    slower[list(default_fit.FREE).index("model.step_time.layer_us")] += 0.2
    assert problem.ln_posterior(shipped) > -40
    assert problem.ln_posterior(slower) < problem.ln_posterior(shipped) - 10


def test_only_what_the_page_says_is_fitted() -> None:
    fitted = default_fit.of_the_fit(STUDIES)
    assert len(fitted) == 6
    assert {it.backend for it in fitted if isinstance(it, ClosedLoop)} == {"ROCM_AITER_FA"}


def test_the_value_of_a_fit_is_a_draw_near_the_middle_that_fits() -> None:
    rng = np.random.default_rng(1)
    draws = rng.standard_normal((400, 3)) * [1, 2, 3]
    ln_posterior = -0.5 * ((draws / [1, 2, 3]) ** 2).sum(axis=1)
    found = default_fit.middle(draws, ln_posterior)
    assert (found == draws).all(axis=1).any()
    assert np.abs(found / [1, 2, 3]).max() < 1


def test_every_fitted_constant_has_its_correlations() -> None:
    posterior = load().model.posterior
    assert list(posterior.correlations) == list(default_fit.FREE)
    assert posterior.hardware == ["MI300X", "MI325X"]
