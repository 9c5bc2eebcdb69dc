"""tests/benchmarks/evidence: published measurements are met, and rows of every format get an answer."""

import math
from pathlib import Path

import numpy as np
import pytest

from conf import load
from conf.constants import constants, transfers
from conf.kernels import RELEASE_LN_SD, TABLE
from loadgen.predict.draws import DEPLOYMENT_SCALE, LAYOUT_SCALE
from loadgen.studies.published_tables import TABLES
from tests.benchmarks.evidence import default_fit, releases
from tests.benchmarks.evidence.blog import Attainment, ClosedLoop, Ratio, Requests, Statistics
from tests.benchmarks.evidence.figures import Study, answers
from tests.benchmarks.evidence.kernels import FAMILIES, Kernels, fitted, gemm, ln_us, mixture
from tests.benchmarks.evidence.leave_out import relative, transferred, unmeasured
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


LOOPS = (
    "source,gpu,n_gpus,engine,model,precision,layout,isl,osl,length_distribution,arrival,"
    "metric,value,unit,notes\n"
)


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


def test_the_curves_of_the_paper_are_met_by_the_cards_that_were_fitted_to_them() -> None:
    studies, skipped = read([TABLES])
    assert [len(study.figures) for study in studies] == [20, 24, 24, 22] and len(skipped) == 3
    for study in studies:
        off = study.predict({}) - [figure.scaled for figure in study.figures]
        assert np.sqrt(np.mean(off**2)) < 0.1


def test_mlperf_needs_its_lengths_and_counts_a_run_once(tmp_path: Path) -> None:
    rows, lengths, *_ = OTHERS
    studies, skipped = read([rows])
    assert not studies and all("length pairs" in line or "several GPUs" in line for line in skipped)
    studies, _ = read([rows, lengths])
    submissions = [it for it in studies if isinstance(it, Submission)]
    (server,) = (it for it in submissions if (it.gpu, it.scenario) == ("MI325X", "Server"))
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


def test_one_batch_lasts_as_long_as_its_tokens_and_names_what_is_assumed(tmp_path: Path) -> None:
    row = "notes,H200,8,vLLM 0.12.1rc,Llama-3.1-405B,FP8 w,TP8,128,{osl},,one batch of {n},e2e_batch,9,s,\n"
    text = LOOPS + row.format(osl=100, n=1) + row.format(osl=200, n=1) + row.format(osl=200, n=64)
    studies, _ = read([written(tmp_path, text)])
    short, long, many = (math.exp(study.predict({})[0]) for study in studies)
    assert 1.9 < long / short < 2.0 and 1.0 < many / long < 3.0
    texts = [transfer.text for transfer in transfers(studies[0].experiment)]
    assert texts == ["GPU H200 SXM (fitted: MI325X, MI300X)", "engine vLLM 0.12.1 (fitted: vLLM 0.14)"]


def test_a_closed_loop_by_gpu_counts_its_tokens_once(tmp_path: Path) -> None:
    start = "InferenceX,mi325x,8,sglang,DeepSeek-R1-0528,,TP8 EP1,1024,64,uniform .8-1.0 x nominal,"
    load = '"closed loop, concurrency 4",'
    rows = [
        f"{start}{load}{name}\n" for name in ("tput_per_gpu,9,tok/s/gpu,", "output_tput_per_gpu,9,tok/s/gpu,")
    ]
    study = one(tmp_path, LOOPS + "".join(rows))
    assert isinstance(study, Loop) and study.load.count == 40
    prompt, output, _ = study.load.lengths()
    assert prompt.min() >= round(0.8 * 1024) and prompt.max() <= 1024
    total, of_output = np.exp(study.predict({}))
    assert total / of_output == pytest.approx((prompt.sum() + output.sum()) / output.sum())


def test_a_gemm_and_a_mixture_read_their_weights_and_multiply_each_token_with_its_own() -> None:
    assert gemm(16, 4096, 8192).bytes == pytest.approx(4096 * 8192, rel=0.01)
    assert gemm(16, 4096, 8192).flop == 2 * 16 * 4096 * 8192
    one_token, many = (mixture(tokens, 4096, 384, 128, 8) for tokens in (1, 4096))
    assert one_token.bytes == pytest.approx(8 * 3 * 4096 * 384 * 2)
    assert many.bytes == pytest.approx(128 * 3 * 4096 * 384 * 2)
    assert many.flop == 4096 * 8 * 3 * 2 * 4096 * 384


def test_the_constants_of_kernels_are_found_again(tmp_path: Path) -> None:
    known = FAMILIES["FP8, scale per channel"]
    shapes = [(tokens, columns) for tokens in (1, 16, 128, 512, 2048, 8192) for columns in (4096, 57344)]
    header = "source,tokens,out_features,in_features,us\n"
    blank = header + "".join(f"x,{tokens},{columns},8192,1\n" for tokens, columns in shapes)
    studies, _ = read([written(tmp_path, blank)])
    times = iter(math.exp(value) for study in studies for value in study.predict({}))
    rows = [f"x,{shape.tokens},{shape.columns},8192,{next(times)}\n" for it in studies for shape in it.shapes]
    studies, _ = read([written(tmp_path, header + "".join(rows))])
    assert all(isinstance(study, Kernels) for study in studies)
    result, rms, _ = fitted(studies, "FP8, scale per channel")
    assert rms < 1e-3 and result.peak == pytest.approx(known.peak, rel=0.01)
    (shape, *_), peaks = studies[0].shapes, studies[0].peaks
    assert ln_us(result, shape, *peaks) == pytest.approx(ln_us(known, shape, *peaks), abs=1e-3)


def test_the_times_of_a_release_are_found_again_and_meet_loads_that_they_never_saw() -> None:
    studies = [it for it in read(OTHERS)[0] if "vLLM 0.6.6" in it.source][::3]
    (release,) = releases.by_card(studies)["Llama-3.1-405B-Instruct-FP8"]
    own = studies[0].experiment.model.posterior.releases[release.name]
    assert np.exp(release.at[:2]) == pytest.approx([own["launch"][1], own["step"][1]], rel=0.1)
    left_out, before = (math.sqrt(np.mean(each**2)) for each in (release.left_out(), release.before))
    assert left_out < 0.6 * before


def test_a_source_left_out_is_of_a_release_that_nobody_measured() -> None:
    (study, *_) = (it for it in read(OTHERS)[0] if "vLLM 0.6.6" in it.source)
    own, *_ = transferred(study.experiment, unmeasured(study.experiment), 0)
    others = study.experiment.model.posterior.releases["vLLM 0.11"]["launch"][1]
    assert own["engine.kernel_ratio.launch"] == pytest.approx(math.sqrt(others))


def test_a_card_with_one_source_is_left_out_for_its_relatives_constants() -> None:
    (study, *_) = (it for it in read(OTHERS)[0] if isinstance(it, Submission))
    own, *drawn = relative(study.experiment, 40)
    assert own["model.step_time.layer_us"] != study.experiment.model.step_time.layer_us.value
    ln = np.log([values["model.step_time.deployment_scale"] for values in drawn])
    assert ln.std() > math.hypot(TABLE["transfers"]["model"]["ln_sd"], RELEASE_LN_SD["step"]) * 0.9
    (rows, *_) = answers(study, 0, [own])
    assert rows.low < rows.predicted < rows.high
