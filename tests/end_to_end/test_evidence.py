"""tests/benchmarks/evidence: published measurements are met, and rows of every format get an answer."""

import math
from pathlib import Path

import numpy as np
import pytest

from conf import load
from conf.constants import constants
from loadgen.predict.draws import DEPLOYMENT_SCALE, LAYOUT_SCALE
from tests.benchmarks.evidence import default_fit
from tests.benchmarks.evidence.blog import Attainment, ClosedLoop, Ratio, Requests, Statistics
from tests.benchmarks.evidence.figures import Study, answers
from tests.benchmarks.evidence.loop_fit import FREE, ROWS, Measured
from tests.benchmarks.evidence.loops import Loop
from tests.benchmarks.evidence.mlperf import Submission
from tests.benchmarks.evidence.reading import OTHERS, read

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


@pytest.mark.slow
def test_two_tp4_serve_more_than_one_tp8_at_the_same_latency() -> None:
    (ratio,) = (it for it in STUDIES if isinstance(it, Ratio))
    (rows,) = answers(ratio, 40)
    assert rows.predicted > 0
    assert rows.low < math.log(1.45) < rows.high
    assert rows.high - rows.low < math.log(1.5)


@pytest.mark.slow
def test_most_rows_lie_in_their_intervals_which_are_not_too_wide() -> None:
    result = [row for study in STUDIES for row in answers(study, 12)]
    assert sum(row.inside for row in result) >= 0.9 * len(result)
    assert np.median([row.high - row.low for row in result]) / 2 < 0.2


def test_every_fitted_constant_has_its_correlations() -> None:
    posterior = load().model.posterior
    assert list(posterior.correlations) == list(default_fit.FREE)
    assert posterior.hardware == ["MI300X", "MI325X"]


def written(folder: Path, text: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def one(folder: Path, text: str) -> Study:
    (study,), skipped = read([written(folder, text)])
    assert not skipped
    return study


@pytest.mark.parametrize("name", ["1P1D MoRI-IO read", "pd_write", "1p1d_tp4_ep4"])
def test_requests_and_shares_of_the_split_node_are_read(tmp_path: Path, name: str) -> None:
    requests = one(tmp_path, f"config,request,ttft_s,itl_s\n{name},0,0.3,0.04\n")
    assert isinstance(requests, Requests)
    assert requests.experiment.layout.prefill is not None
    assert requests.experiment.layout.transfer_mode == ("write" if "write" in name else "read")
    ttft, gap = np.exp(requests.predict({}))
    assert 0.1 < ttft < 2 and 0.01 < gap < 0.3
    shares = one(tmp_path, f"configuration,rate_qps,slo_attainment_pct\n{name},2,90\n")
    assert 0 <= shares.predict({})[0] <= 1


def test_statistics_are_those_of_the_requests(tmp_path: Path) -> None:
    rows = "".join(f"tp8_ep8,{number},1,1\n" for number in range(100))
    requests = one(tmp_path, f"config,request,ttft_s,itl_s\n{rows}")
    text = "configuration,rate_qps,metric,value,unit\n1xTP8,8,p90 TTFT,1300,ms\n1xTP8,8,mean_gap,0.2,s\n"
    statistics = one(tmp_path, text)
    assert isinstance(statistics, Statistics) and statistics.figures[0].value == 1.3
    seen = np.exp(requests.predict({}))
    expected = [np.quantile(seen[:100], 0.9), seen[100:].mean()]
    assert np.exp(statistics.predict({})) == pytest.approx(expected)


def test_mlperf_needs_its_lengths_and_counts_a_run_once(tmp_path: Path) -> None:
    rows, lengths, *_ = OTHERS
    studies, skipped = read([rows])
    assert not studies and all("length pairs" in line or "several GPUs" in line for line in skipped)
    studies, _ = read([rows, lengths])
    (server,) = (
        study
        for study in studies
        if isinstance(study, Submission) and (study.gpu, study.scenario) == ("MI325X", "Server")
    )
    seen = np.exp(server.predict({}))
    published = [rate for _, rate, *_ in server.rows]
    assert seen == pytest.approx(published, rel=0.12)
    slower = np.exp(server.predict({"model.step_time.deployment_scale": 1.1}))
    assert (slower < seen).all()


def test_the_card_of_deepseek_r1_meets_the_loops_that_it_was_fitted_to() -> None:
    measured = Measured([it for it in read([ROWS])[0] if isinstance(it, Loop)])
    values = load(["model=deepseek_r1_fp8", "layout=dp1_tp8"])
    at = np.log([constants(values)[path].value for path in FREE])
    off = measured.predict(at) - measured.means
    assert len(off) == 48 and np.sqrt(np.mean(off**2)) < 0.08
    slower = measured.predict(at + np.array([0.3, *np.zeros(len(FREE) - 1)])) - measured.predict(at)
    tpot = ["tpot" in label for label in measured.labels]
    assert (slower[tpot] > 0.03).all()
