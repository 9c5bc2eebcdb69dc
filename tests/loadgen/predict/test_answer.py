"""loadgen/predict/answer.py over an engine model whose answer is known: TPOT grows with the rate;
no figure is impossible."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.results import predictions, summary
from analysis.results.figures import CapacityFigures, ProbeFigures
from analysis.results.json_border import to_tree
from analysis.results.predictions import CapacityDraws, PredictionVerdict, RateForecast
from analysis.results.summary import EXIT_OPEN
from analysis.rows import metrics, records
from conf import ConfigError, Experiment, load
from conf.matrix import matrix
from loadgen.cli import engine_model, prediction
from loadgen.cli.words import experiment_of
from loadgen.predict import answer, grid, uncertainty
from loadgen.predict.capacity import MOST_NOISE
from loadgen.predict.operating_point import Effort, RateSimulator
from loadgen.traffic.schedule import NS
from tests.support.runs.verdict_trees import at_rate, cells, grid_screen, predict, screen, text_of
from tests.support.virtual.known_answer import (
    DEPLOYMENT,
    LAYER,
    LAYOUT,
    MODEL,
    STEP,
    only_layer,
    queueing,
    simulate,
    unsure,
)

PREDICTED = yaml.safe_load((Path(__file__).parents[2] / "data" / "predictions.yaml").read_text())


def test_the_answer_and_its_interval_are_those_of_the_constants() -> None:
    tree = predict(only_layer(), MODEL)
    q = tree["capacity"]["qps_per_node"]
    assert (tree["exit_code"], tree["valid"], tree["clock"]) == (0, True, "virtual")
    # 100 ms / 20 ms; capacity goes with 1 / layer_us, whose 95 % interval is 0.8 to 1.6 of its value.
    assert q["value"] == pytest.approx(5.0, rel=0.005)
    assert q["low"] == pytest.approx(5.0 / 1.6, rel=0.05)
    assert q["high"] == pytest.approx(5.0 / 0.8, rel=0.03)
    assert q["low"] < q["certified"] < q["value"]
    assert (tree["capacity"]["binding"], tree["capacity"]["binding_probability"]) == ("tpot", 1.0)
    assert tree["forecast"]["of_capacity"]["constants_sampled"] == [LAYER]
    assert tree["forecast"]["in_flight_per_node"] == pytest.approx(5.0 * (0.1 + 13.9), rel=0.02)
    assert tree["forecast"]["input_tokens_per_s_per_node"] == pytest.approx(5.0 * 5600, rel=0.01)


def test_without_uncertain_constants_the_interval_is_noise_and_says_so() -> None:
    tree = predict(unsure({}), MODEL)
    q = tree["capacity"]["qps_per_node"]
    assert q["high"] / q["low"] < 1.01 and "Monte Carlo noise alone" in text_of(tree)
    assert tree["capacity"]["binding_probability"] is None


def test_the_sensitivity_says_what_to_measure_first() -> None:
    tree = predict(only_layer(), MODEL, draws=2, sensitivity=True)
    first, *_ = tree["sensitivity"]
    assert first["path"] == LAYER and first["share"] == pytest.approx(1.0)
    assert (first["at_low_qps"], first["at_high_qps"]) == pytest.approx((6.25, 3.125), rel=0.02)
    result = {row["path"]: row["elasticity"] for row in tree["sensitivity"]}
    known = {LAYER: -1.0, DEPLOYMENT: -1.0, LAYOUT: -1.0, STEP: -0.5}
    assert {path: result.pop(path) for path in known} == pytest.approx(known, abs=0.05)
    assert all(elasticity == pytest.approx(0, abs=0.02) for elasticity in result.values())
    text = text_of(tree)
    assert text.startswith("PREDICTED  5.0") and "what to measure first" in text


def test_open_ends_are_bounds_and_no_numbers() -> None:
    above = predict(only_layer("search.highest_qps=3"), MODEL, draws=0)
    assert (above["exit_code"], above["capacity"]["open_above"]) == (summary.EXIT_OPEN, True)
    q = above["capacity"]["qps_per_node"]
    assert q == {"value": 3.0, "low": 3.0, "high": None, "certified": None}
    assert above["forecast"]["noise"]["noise_pct"] is None
    text = text_of(above)
    assert "at least 3.00 QPS per node: the bounds are kept even there (search.highest_qps)" in text
    assert "has an interval" not in text and "per replica: at least 3.00 QPS" in text
    shared = predict(only_layer("search.highest_qps=4.5"), MODEL, draws=16)
    assert "the bounds are kept in 6" in text_of(shared) or "the bounds are kept in 7" in text_of(shared)
    below = predict(only_layer("slo.tpot_p90_ms=0.5"), MODEL, draws=0)
    assert below["exit_code"] == summary.EXIT_SLO_MISSED and below["capacity"] is None
    assert "the bounds are not met even at the lowest rate" in text_of(below)


def test_a_quantile_among_draws_beyond_an_end_is_unknown() -> None:
    below = predict(only_layer("search.lowest_qps=4"), MODEL)
    q = below["capacity"]["qps_per_node"]
    assert (q["low"], q["certified"], below["exit_code"]) == (None, None, summary.EXIT_OPEN)
    assert q["high"] == pytest.approx(5.0 / 0.8, rel=0.05)
    assert (below["capacity"]["open_below"], below["capacity"]["open_above"]) == (True, False)
    assert "draws of the constants even at 4 QPS per node (search.lowest_qps)" in below["reason"]
    assert "95 % interval [open, 6." in text_of(below)
    above = predict(only_layer("search.highest_qps=5.5"), MODEL)
    q = above["capacity"]["qps_per_node"]
    assert (q["high"], above["exit_code"]) == (None, summary.EXIT_OPEN) and q["certified"] > q["low"] > 2.9
    draws = CapacityDraws(
        draws=25,
        open_draws_below=1,
        open_draws_above=0,
        constants_sampled=(LAYER,),
        ln_ratios=(-1.0,) + (0.0,) * 24,
    )
    few = uncertainty.Uncertainty(draws, smoothed=(0.0,) * 25)
    assert few.ends(0.025, 0.0) is None and few.ends(0.05, 0.0) == 0.0


def test_an_overload_shows_what_was_served_and_no_steady_state() -> None:
    tree = at_rate(only_layer("rate_qps=12"), replace(MODEL, simulate=queueing), draws=0)
    assert tree["forecast"]["output_tokens_per_s_per_node"] == pytest.approx(6 * 140, rel=0.1)
    assert tree["forecast"]["input_tokens_per_s_per_node"] == pytest.approx(6 * 5600, rel=0.1)
    assert tree["forecast"]["in_flight_per_node"] is None
    assert "requests in flight unknown (overload" in text_of(tree)


def test_one_rate_is_judged_against_the_bounds() -> None:
    kept, missed = (at_rate(only_layer(f"rate_qps={qps}"), MODEL, draws=8) for qps in (4.5, 5.5))
    assert (kept["exit_code"], missed["exit_code"]) == (summary.EXIT_OK, summary.EXIT_SLO_MISSED)
    assert missed["probe"]["limits"]["tpot"]["ms"]["value"] == pytest.approx(110, rel=0.01)
    # The value is above 91 us, where 5.5 QPS would just be kept, in all but the lowest fifth of its draws.
    assert missed["forecast"]["of_rate"]["kept_probability"] == pytest.approx(0.2, abs=0.07)
    headline = text_of(missed).splitlines()[0]
    assert headline.startswith(
        "PREDICTED  5.5 QPS per node: p90 TPOT over the bound; the bounds are kept in "
    )
    assert headline.endswith(" % of 8 draws of the constants; requests of 5600/140 tokens")


def test_a_grid_of_rates_fills_its_rows_and_columns_keep_their_types() -> None:
    rates = matrix(["matrix.rate_qps=[2,8]"])
    result = grid.cells_of(rates, lambda words: only_layer(*words))
    lines: list[str] = []
    tree = to_tree(grid.predicted(result, lambda one: answer.at_rate(one, MODEL, draws=8), map, lines.append))
    assert lines == ["cell 1 of 2 is done", "cell 2 of 2 is done"]
    _, slow, fast, *below = grid_screen(tree).splitlines()
    assert [line.split()[0] for line in below] == ["measured:", "fitted:", "assumed:"]
    assert slow.split()[:8] == ["2", "2", "kept", "in", "100", "%", "-", "100"]
    assert fast.split()[1:9] == ["8", "kept", "in", "0", "%", "TPOT", "100", "160"]
    assert len(fast.split()) == 13
    other = {"at": {"rate_qps": 2}, "answer": predict(only_layer(), MODEL, draws=0)}
    row = predictions.grid_rows(cells([other]), False)
    assert row.schema == predictions.grid_rows(cells(tree["cells"]), False).schema


def test_independent_nodes_answer_as_one_and_pooled_ones_together() -> None:
    words = ("cluster.session=fake", "cluster.nodes=3000")
    apart = RateSimulator(only_layer(*words, "routing=per_node"), simulate, Effort.from_budget(600, 1))
    assert apart.at(5.0).load_s < 2 * 600
    # A pooled service is simulated whole, yet not for longer than its requests are worth.
    whole = Effort.from_budget(36000, 3000)
    assert (whole.parts, whole.nodes, whole.window_s) == (1, 3000, 60.0)
    tree = predict(only_layer(*words, "routing=per_node"), MODEL, draws=0)
    assert tree["capacity"]["qps_per_node"]["value"] == pytest.approx(5.0, rel=0.005)


def test_draws_have_the_constants_intervals_and_a_calibrations_correlation() -> None:
    experiment = only_layer()
    values = np.array([draw[LAYER] for draw in uncertainty.drawn(experiment, 400)])
    assert np.quantile(values, [0.025, 0.5, 0.975]) == pytest.approx([80, 100, 160], rel=0.03)
    assert uncertainty.drawn(only_layer("seed=7"), 3) == uncertainty.drawn(experiment, 3)
    rows = {LAYER: [0.01, -0.0099], STEP: [-0.0099, 0.01]}
    both = unsure({LAYER: 1.2, STEP: 1.2})
    engine: Any = replace(both.engine, constants_covariance=rows)  # type: ignore[call-arg]
    draws = uncertainty.drawn(replace(both, engine=engine), 400)
    ln = np.log([[draw[LAYER], draw[STEP]] for draw in draws])
    assert np.corrcoef(ln.T)[0, 1] == pytest.approx(-0.99, abs=0.01)
    assert ln.std(axis=0) == pytest.approx([0.1, 0.1], rel=0.05)


def test_a_grid_compares_on_common_errors_and_keeps_refused_cells(tmp_path: Path) -> None:
    asked_cells = matrix(["matrix.slo.tpot_p90_ms=[100,50]", "matrix.layout=[dp1_tp8_ep8,nonsense]"])

    def asked(words: list[str]) -> Experiment:
        return only_layer(*words)

    result = grid.cells_of(asked_cells, asked)
    tree = to_tree(grid.predicted(result, lambda one: answer.predict(one, MODEL, draws=8), map))
    first, refused, second, _ = tree["cells"]
    # layer_us is wrong alike in both cells, so that the ratio knows nothing of its error.
    assert second["ratio"]["value"] == pytest.approx(0.5, rel=0.01)
    assert second["ratio"]["high"] / second["ratio"]["low"] < 1.03
    assert "unknown choice 'layout=nonsense'" in refused["answer"]["reason"]
    assert tree["exit_code"] == refused["answer"]["exit_code"] == 2
    table = grid_screen(tree).splitlines()
    assert len(table) == 8 and "unknown choice" in table[2]
    pq.write_table(predictions.grid_rows(cells(tree["cells"]), False), tmp_path / "grid.parquet")
    rows = pq.read_table(tmp_path / "grid.parquet").to_pylist()
    assert [row["experiment.slo.tpot_p90_ms"] for row in rows] == ["100", "100", "50", "50"]
    assert rows[0]["qps_per_node"] == pytest.approx(first["answer"]["capacity"]["qps_per_node"]["value"])
    assert rows[1]["qps_per_node"] is None and rows[0]["mfu"] > 0


def test_a_prediction_honours_nodes_and_one_rate() -> None:
    experiment = experiment_of("predict", ["cluster.nodes=3000", "rate_qps=10"], None)
    assert (experiment.cluster.nodes, experiment.rate_qps) == (3000, 10.0)
    assert experiment.search.budget_s == 36000.0


def test_plain_columns_have_the_latencies_of_the_request_table() -> None:
    due, first, last = np.array([0.0, 1.0]), np.array([0.4, 1.3]), np.array([1.4, 1.3])
    tokens = np.array([11, 1])
    ns = {
        "first_token_offset_ns": ((first - due) * NS).astype(np.int64),
        "last_token_offset_ns": ((last - due) * NS).astype(np.int64),
        "output_tokens": tokens.astype(np.int32),
        "status": pa.array([records.OK] * 2),
    }
    columns: dict[str, Any] = records.empty(records.PROGRESS, 2) | ns
    table = pa.table(columns, schema=records.PROGRESS)
    assert metrics.ttft_ms(due, first) == pytest.approx(metrics.ttft(table))
    assert metrics.tpot_ms(first, last, tokens) == pytest.approx(metrics.tpot(table), nan_ok=True)
    assert math.isnan(metrics.tpot_ms(first, last, tokens)[1])


@pytest.mark.parametrize("words", PREDICTED["claimed"])
def test_the_claimed_rate_was_simulated_and_keeps_its_bounds_as_printed(words: str) -> None:
    asked = prediction.checked([*words.split(), "search.budget_s=1200"], None)
    tree = to_tree(engine_model.predict(asked, draws=0))
    claimed, result = tree["capacity"]["qps_per_node"]["value"], tree["forecast"]
    assert claimed == result["rate_qps_per_node"] == float(f"{claimed:.4g}")
    for limit in ("ttft", "tpot"):
        assert result["limits_ms"][limit] <= getattr(asked.slo, f"{limit}_p90_ms")
    assert f"at {claimed:.4g} QPS per node" in text_of(tree)


ABSURD = re.compile(r"\bnan\b|[^\w]-\d|\binf %")
"""Texts that no figure of a prediction is: not a number, a negative one, an infinite share."""
FAR = 100.0
"""No end of an interval lies so many times above the estimate (our choice): constants move it by tens of
percent."""


def check_possible(verdict: PredictionVerdict, highest_qps: float) -> None:
    """The figures of an answer lie within physical limits, or are said to be unknown."""
    if verdict.capacity:
        _capacity(verdict.capacity, highest_qps)
    if verdict.forecast:
        _forecast(verdict.forecast)
    if verdict.probe:
        _latencies(verdict.probe)
    if verdict.forecast and verdict.probe and not verdict.forecast.requests:
        assert verdict.exit_code == EXIT_OPEN and verdict.forecast.kept_probability is None
    assert not ABSURD.search(screen(verdict)), screen(verdict)


def _capacity(figures: CapacityFigures, highest_qps: float) -> None:
    q = figures.qps_per_node
    known = [end for end in (q.low, q.certified, q.value, q.high) if end is not None]
    assert known == sorted(known) and all(0 < end < math.inf for end in known)
    assert q.value <= highest_qps and (q.high is None or q.high <= FAR * q.value)
    assert figures.at_end or (figures.open_above, figures.open_below) == (q.high is None, q.low is None)


def _forecast(forecast: RateForecast) -> None:
    for share in (
        forecast.kv_used,
        forecast.busy,
        forecast.mfu,
        forecast.cached_share_of_input,
        forecast.kept_probability,
    ):
        assert share is None or 0 <= share <= 1 + 1e-9
    tokens = (forecast.input_tokens_per_s_per_node, forecast.output_tokens_per_s_per_node)
    for figure in (*forecast.limits_ms.values(), *tokens, forecast.in_flight_per_node):
        assert figure is None or 0 <= figure < math.inf
    assert forecast.noise_pct is None or 0 <= forecast.noise_pct <= 100 * MOST_NOISE


def _latencies(probe: ProbeFigures) -> None:
    for found in probe.limits.values():
        if found.ms is None:
            continue
        at_ms, (low_ms, high_ms) = found.ms.value, found.ms.ends
        assert 0 <= at_ms < math.inf
        assert low_ms is None or 0 <= low_ms <= at_ms
        assert high_ms is None or at_ms <= high_ms < math.inf


def between(name: str, least: float, most: float) -> st.SearchStrategy[str]:
    """A word that sets a positive number, each order of magnitude as likely as the next."""
    return st.floats(math.log(least), math.log(most)).map(lambda ln: f"{name}={math.exp(ln):.3g}")


def whole(name: str, least: int, most: int) -> st.SearchStrategy[str]:
    return st.floats(math.log(least), math.log(most)).map(lambda ln: f"{name}={math.exp(ln):.0f}")


def maybe(word: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(st.just(""), word)


questions = st.tuples(
    st.sampled_from(["dp1_tp8_ep8", "dp2_tp4_ep4", "dp1_tp8", "dp4_tp2_ep2"]).map("layout={}".format),
    maybe(st.sampled_from(["h200", "mi300x", "b200", "mi355x"]).map("hardware={}".format)),
    whole("workload.input_tokens.mean", 8, 20_000),
    whole("workload.output_tokens.mean", 1, 2000),
    maybe(st.sampled_from([0.2, 0.5, 0.9]).map("workload.prefix_hit={}".format)),
    maybe(st.just("workload.arrivals.kind=constant")),
    st.one_of(st.just("slo.ttft_p90_ms=null"), between("slo.ttft_p90_ms", 3, 60_000)),
    between("slo.tpot_p90_ms", 1, 1000),
    maybe(between("slo.itl_p99_ms", 3, 1000)),
    maybe(between("slo.itl_pooled_p95_ms", 3, 1000)),
    maybe(between("slo.e2e_p50_ms", 20, 100_000)),
    maybe(between("slo.queue_p90_ms", 0.5, 3000)),
    maybe(st.just("slo.joint=.9")),
    maybe(between("rate_qps", 0.02, 100)),
)


def check_question(words: Sequence[str], draws: int) -> None:
    experiment = load(["cluster.session=fake", "search.budget_s=120", *filter(None, words)])
    try:
        verdict = engine_model.predict(experiment, draws=draws)
    except ConfigError as refused:
        assert "\n" not in str(refused)
        return
    check_possible(verdict, experiment.search.highest_qps)


@pytest.mark.parametrize("words", PREDICTED["impossible"])
def test_answers_that_were_impossible_once(words: str) -> None:
    check_question(words.split(), draws=1)


def test_a_request_without_any_bounded_latency_keeps_a_joint_bound() -> None:
    """Half of the answers have one token and so no TPOT; the others miss a TPOT that no engine reaches."""
    lengths = ["workload.output_tokens.kind=mixture", "workload.output_tokens.values=[1,50]"]
    bounds = ["slo.ttft_p90_ms=null", "slo.tpot_p90_ms=.01", "slo.joint=.9"]
    words = ["cluster.session=fake", "search.budget_s=600", "rate_qps=1", *lengths, *bounds]
    verdict = engine_model.predict(load([*words, "workload.output_tokens.weights=[.5,.5]"]), draws=0)
    assert verdict.probe.limits["joint_p90"].share == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow
@settings(max_examples=15)
@given(questions)
def test_so_are_random_questions_to_the_engine_model(words: tuple[str, ...]) -> None:
    check_question(words, draws=4)
