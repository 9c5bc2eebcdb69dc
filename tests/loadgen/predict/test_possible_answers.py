"""`loadgen.predict.answer`: no figure of a prediction by the engine model is impossible."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.results.figures import CapacityFigures, ProbeFigures
from analysis.results.predictions import PredictionVerdict, RateForecast
from analysis.results.summary import EXIT_OPEN
from conf import ConfigError, load
from loadgen.cli import engine_model
from loadgen.predict.capacity import MOST_NOISE
from tests.support.runs.verdict_trees import screen

ABSURD = re.compile(r"\bnan\b|[^\w]-\d|\binf %")
"""Texts that no figure of a prediction is: not a number, a negative one, an infinite share."""
FAR = 100.0
"""No end of an interval lies so many times above the estimate (our choice): constants move it by tens of
percent."""


def possible(verdict: PredictionVerdict, highest_qps: float) -> None:
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


def check(words: tuple[str, ...], draws: int) -> None:
    experiment = load(["cluster.session=fake", "search.budget_s=120", *filter(None, words)])
    try:
        verdict = engine_model.predict(experiment, draws=draws)
    except ConfigError as refused:
        assert "\n" not in str(refused)
        return
    possible(verdict, experiment.search.highest_qps)


@pytest.mark.parametrize(
    "words",
    [
        # Printed an interval [unknown, 114689.19], and 1366 % of noise.
        ("slo.itl_p99_ms=150",),
        # Had a negative share of its KV cache in use.
        ("workload.input_tokens.mean=493", "workload.output_tokens.mean=1", "workload.prefix_hit=.9"),
        # Left requests without any bounded latency out of the joint share, with a warning on the screen.
        ("workload.output_tokens.mean=1", "slo.ttft_p90_ms=null", "slo.joint=.9", "rate_qps=2"),
        # So low a rate that no request came: shares and tokens were no numbers, and the bounds were kept.
        ("rate_qps=0.0001",),
    ],
)
def test_answers_that_were_impossible_once(words: tuple[str, ...]) -> None:
    check(words, draws=1)


def test_a_request_without_any_bounded_latency_keeps_a_joint_bound() -> None:
    """Half of the answers have one token and so no TPOT; the others miss a TPOT that no engine reaches."""
    lengths = ["workload.output_tokens.kind=mixture", "workload.output_tokens.values=[1,50]"]
    bounds = ["slo.ttft_p90_ms=null", "slo.tpot_p90_ms=.01", "slo.joint=.9"]
    words = ["cluster.session=fake", "search.budget_s=600", "rate_qps=1", *lengths, *bounds]
    verdict = engine_model.predict(load([*words, "workload.output_tokens.weights=[.5,.5]"]), draws=0)
    assert verdict.probe is not None
    assert verdict.probe.limits["joint_p90"].share == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow
@settings(max_examples=15)
@given(questions)
def test_so_are_random_questions_to_the_engine_model(words: tuple[str, ...]) -> None:
    check(words, draws=4)
