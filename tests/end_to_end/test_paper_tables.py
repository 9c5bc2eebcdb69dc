"""The paper's experiment is rebuilt as its tables imply, and the shipped constants are those fitted to it."""

from typing import Any

import numpy as np
import pytest
import yaml

from analysis.stats.map_fit import ParameterPrior, around
from conf.constants import constants, replaced
from conf.specs.experiment import Constant, Experiment
from conf.words import ROOT
from loadgen.studies.published_tables import (
    PUBLISHED_MODELS,
    PublishedModel,
    PublishedRow,
    fitted_rows,
    outputs,
)
from serve_apps.engine_model.cost.step_time import Batch, roofline
from tests.benchmarks._paper import FITTED, HELD, READ, SPREAD, halves
from tests.benchmarks._paper_files import with_constants, with_posterior
from tests.benchmarks.paper_tables import Tables, machine, shipped, told

SUBJECT = {subject.name: subject for subject in PUBLISHED_MODELS}
LLAMA, QWEN, DEEPSEEK, KIMI = SUBJECT


def row(
    table: str, concurrency: int, output_tok_s: float | None = None, total_tok_s: float = 1.0
) -> PublishedRow:
    return PublishedRow(table, concurrency, output_tok_s is None, total_tok_s, output_tok_s, 1.0)


@pytest.mark.parametrize(
    ("asked", "requests", "in_flight"),
    [(row("15", 5, 1), 15, 5), (row("14", 200, 1), 300, 200), (row("22", 300), 300, 300)]
    + [(row("22", concurrency), 450, 450) for concurrency in (500, 750, 1000)],
)
def test_a_row_is_a_burst_or_three_waves(asked: PublishedRow, requests: int, in_flight: int) -> None:
    assert (asked.requests, asked.in_flight) == (requests, in_flight)


def test_a_quarter_of_deepseeks_answers_run_to_their_limit_and_the_others_end_at_once() -> None:
    asked = outputs(SUBJECT[DEEPSEEK], row("22", 200))
    assert sorted(set(asked.tolist())) == [2, 100]
    assert np.count_nonzero(asked == 100) == 50
    assert asked.reshape(-1, 4)[:, -1].tolist() == [100] * 50


def test_a_rows_own_mean_sets_its_answers() -> None:
    asked = outputs(SUBJECT[LLAMA], row("15", 5, output_tok_s=153, total_tok_s=423))
    assert asked.mean() == pytest.approx(329 * 153 / (423 - 153), abs=0.05)
    assert asked.max() == 200


def test_halves_are_every_second_row_of_a_table_whether_fitted_or_not() -> None:
    rows = [row("14", 10, 1), row("14", 25, 1), *(row("23", each) for each in (150, 200, 300, 500))]
    first, second = halves(rows)
    assert [each.concurrency for each in first] == [10, 150, 300]
    assert [each.concurrency for each in second] == [25, 200, 500]
    assert [each.concurrency for each in fitted_rows(SUBJECT[QWEN], first)] == [10, 300]


def test_a_batch_never_touches_more_experts_than_its_tokens_choose() -> None:
    tables = Tables.of(SUBJECT[QWEN])
    beyond = np.log([3.0 if name == SPREAD else 0.5 for name in tables.names])
    assert tables.constants(beyond)[SPREAD] == 1.0


@pytest.mark.parametrize("subject", PUBLISHED_MODELS, ids=lambda subject: subject.name)
def test_the_shipped_models_hold_what_the_fit_holds(subject: PublishedModel) -> None:
    known = constants(shipped(subject))
    dense = (READ, SPREAD) if "405B" in subject.name else ()
    held = {name: value for name, value in HELD.items() if name not in (*FITTED[subject.name].free, *dense)}
    assert {name: known[name].value for name in held} == held
    assert known[SPREAD].value <= 1.0


@pytest.mark.parametrize(
    ("name", "asked", "total_tok_s", "p99_s"),
    [
        (LLAMA, PublishedRow("15", 50, False, 3428, 1296, 7.75), 3383, 7.86),
        (LLAMA, PublishedRow("22", 300, True, 13937, None, 9.09), 13961, 9.19),
        (QWEN, PublishedRow("14", 50, False, 13489, 2012, 5.09), 13230, 5.13),
        (QWEN, PublishedRow("23", 300, True, 37850, None, 10.50), 38541, 10.44),
        (DEEPSEEK, PublishedRow("22", 300, True, 12719, None, 7.35), 12418, 7.65),
        (KIMI, PublishedRow("17", 50, False, 1632, 193, 52.02), 1615, 52.31),
        (KIMI, PublishedRow("23", 300, True, 5820, None, 86.81), 5730, 88.06),
    ],
)
def test_the_shipped_constants_retell_the_tables(
    name: str, asked: PublishedRow, total_tok_s: float, p99_s: float
) -> None:
    """Rows of arXiv 2603.10031; beside them what the fit makes of them, to 1 % for the digits shipped."""
    subject = SUBJECT[name]
    found = told(machine(shipped(subject), {}), subject, asked)
    assert found == pytest.approx((total_tok_s, p99_s), rel=0.01)
    assert found == pytest.approx((asked.total_tok_s, asked.p99_s), rel=0.06)


@pytest.mark.parametrize("subject", PUBLISHED_MODELS, ids=lambda subject: subject.name)
def test_the_joint_posterior_spreads_a_decode_step_far_less_than_its_constants_alone(
    subject: PublishedModel,
) -> None:
    """Batch of 64 at 600 tokens on the paper's GPU, by 400 draws from the intervals as they are shipped."""
    experiment = shipped(subject)
    posterior = experiment.model.posterior
    names, rows = list(posterior.correlations), np.array(list(posterior.correlations.values()))
    assert posterior.hardware == ["MI325X"]
    assert "cache hit" in posterior.rests_on
    assert rows == pytest.approx(rows.T)
    assert np.diag(rows) == pytest.approx(1.0)
    variances, axes = np.linalg.eigh(rows)
    assert variances.min() > -0.01
    known = constants(experiment)
    assert all(any(known[name].ln_sd) for name in names)
    normal = np.random.default_rng(0).standard_normal((400, len(names)))
    together = normal @ (axes * np.sqrt(np.maximum(variances, 0))).T

    def spread(draws: Any) -> float:
        steps = [step_s(experiment, {n: known[n] for n in names}, draw) for draw in draws]
        low, high = np.quantile(steps, [0.025, 0.975])
        return float(high / low)

    assert spread(together) < 1.2
    assert np.log(spread(together)) < 0.6 * np.log(spread(normal))


def step_s(experiment: Experiment, drawn: dict[str, Constant], normal: Any) -> float:
    """Duration of a decode step with constants that are so many sds of ln off."""
    values = {
        name: it.value * float(np.exp(z * it.ln_sd[int(z > 0)]))
        for (name, it), z in zip(drawn.items(), normal, strict=True)
    }
    asked = replaced(experiment, values)
    batch = Batch(decode_tokens=64, context_tokens=64 * 600, sequences=64)
    return roofline(asked.model, asked.hardware, asked.layout).duration_s(batch)


def test_a_fit_is_written_into_a_models_file_and_nothing_else_changes() -> None:
    text = (ROOT / "model" / "llama31_405b_fp8.yaml").read_text()
    layer, gemm = "model.step_time.layer_us", "model.step_time.gemm_decode"
    changed = with_constants(text, {layer: (1234.5, 2345.6, 3456.7)})
    assert "  layer_us: {value: 2350, unit: us, low: 1230, high: 3460, source: " in changed
    rows = [[1.0, -0.00001], [-0.00001, 1.0]]
    written = with_posterior(changed, "a test", "MI300X", [layer, gemm], rows)
    assert written.partition("posterior:")[0] == changed.partition("posterior:")[0]
    found = yaml.safe_load(written)["posterior"]
    assert found["correlations"] == {layer: [1, 0], gemm: [0, 1]}
    assert (found["rests_on"], found["hardware"]) == ("a test", ["MI300X"])
    assert with_posterior(written, "a test", "MI300X", [layer, gemm], rows) == written
    with pytest.raises(ValueError, match="expert_read has no line with value, unit, low and high"):
        with_constants(text, {"model.step_time.expert_read": (0.1, 0.2, 0.3)})


def test_what_was_held_widens_what_was_fitted_beside_it() -> None:
    """ln a + ln b is measured four times: a alone is as open as b, and their sum is not."""
    data = np.zeros(4)
    prior = ParameterPrior(np.zeros(2), np.array([5.0, 0.2]), np.array([5.0, 0.2]))
    found = around(lambda ln: np.full(4, ln.sum()), data, prior, np.zeros(2), np.full(4, 0.02))
    assert found.at == pytest.approx([0.0, 0.0])
    assert found.sd == pytest.approx([0.2, 0.2], rel=0.02)
    assert found.correlation[0, 1] == pytest.approx(-1.0, abs=0.01)
    assert np.sqrt(found.covariance.sum()) == pytest.approx(0.01, rel=0.05)
