"""loadgen/predict/capacity.py: bounds that no rate keeps are said in words and have no interval."""

import doctest
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.results import summary
from analysis.results.predictions import PredictionVerdict
from conf import Experiment, load
from loadgen.cli import engine_model
from loadgen.predict import answer, capacity
from loadgen.predict.capacity import MOST_NOISE
from loadgen.predict.operating_point import Simulated
from loadgen.traffic.schedule import NS, ArrivalSchedule
from tests.support.runs.verdict_trees import screen


def asked(*words: str) -> Experiment:
    return load([*words, "cluster.session=fake", "search=virtual", "search.budget_s=3600"])


def predicted(*words: str) -> PredictionVerdict:
    return answer.predict(asked(*words), engine_model.MODEL, draws=0)


def test_the_gap_beside_a_prompt_is_the_step_that_computes_it() -> None:
    whole, halves = (
        capacity.gap_beside_prompt_ms(asked(*words), engine_model.simulate)
        for words in ((), ("engine.max_num_batched_tokens=2800",))
    )
    assert whole == pytest.approx(194.6, rel=0.01) and halves < 0.7 * whole
    short = capacity.gap_beside_prompt_ms(asked("workload.input_tokens=16"), engine_model.simulate)
    assert short < 0.2 * whole


def test_a_bound_on_gaps_that_one_prompt_breaks_has_no_rate_and_no_interval() -> None:
    found = predicted("slo.itl_p99_ms=150")
    assert (found.exit_code, found.capacity, found.no_rate) == (summary.EXIT_SLO_MISSED, None, True)
    gap_ms = capacity.gap_beside_prompt_ms(asked(), engine_model.simulate)
    over = f"{gap_ms:.1f} ms, {100 * (gap_ms / 150 - 1):.0f} % over it"
    said = f"one prompt beside an answer makes a gap of {over}"
    assert found.reason.startswith(f"no rate keeps p99 ITL <= 150 ms where requests meet: {said}")
    said = screen(found)
    assert said.startswith("PREDICTED  no rate keeps the bounds; requests of 5600/140 tokens\n")
    assert "95 %" not in said and "noise" not in said


def test_a_bound_on_gaps_takes_no_capacity_that_another_bound_limits() -> None:
    found = predicted("slo.ttft_p90_ms=305", "workload.output_tokens.mean=40", "slo.itl_p50_ms=150")
    assert (found.exit_code, found.no_rate, found.reason) == (summary.EXIT_OK, False, "")
    assert found.capacity and found.capacity.binding == "ttft"
    assert found.capacity.qps_per_node.value == pytest.approx(0.58, rel=0.05)


def test_the_answers_at_a_quantile_meet_as_many_prompts_as_a_poisson_number() -> None:
    assert doctest.testmod(capacity).failed == 0


@pytest.mark.parametrize(
    ("words", "is_missed"),
    [
        (["slo.itl_p99_ms=150"], True),
        (["slo.itl_p50_ms=150"], False),  # one prompt of the median answer is one gap in 139
        (["slo.itl_p99_ms=150", "slo.itl_within=0.9"], False),
        (["slo.itl_p50_ms=150", "slo.itl_within=0.999"], True),
        (["slo.itl_pooled_p99_ms=150"], False),
        (["slo.itl_pooled_p99_ms=150", "workload.output_tokens.mean=40"], True),
    ],
)
def test_gaps_that_a_bound_ignores_do_not_break_it(words: list[str], is_missed: bool) -> None:
    experiment = asked(*words)
    (limit,) = experiment.slo.at_most_ms
    rare: Any = SimpleNamespace(binding=limit, rate_qps=0.01, e2e_s=1.0)  # requests hardly ever meet
    assert bool(capacity.missed_beside_prompt(rare, experiment, engine_model.simulate)) == is_missed


def test_a_bound_that_requests_alone_miss_has_no_rate() -> None:
    found = predicted("slo.ttft_p90_ms=200")
    assert found.reason == (
        "no rate keeps p90 TTFT <= 200 ms: requests that meet no other have 228.2 ms, 14 % over it"
    )
    assert (found.exit_code, found.no_rate) == (summary.EXIT_SLO_MISSED, True)


def test_a_bound_that_requests_alone_keep_is_missed_at_the_lowest_rate() -> None:
    found = predicted("slo.ttft_p90_ms=235", "search.lowest_qps=.2")
    assert found.exit_code == summary.EXIT_SLO_MISSED and not found.no_rate
    assert "even at 0.2 QPS per node (search.lowest_qps) p90 TTFT is over its bound" in found.reason


def hardly_growing(experiment: Experiment, arrivals: ArrivalSchedule, nodes: int, _seed: int) -> Simulated:
    """One answer in ten or so is 100 times as slow, hardly more of them with the rate: the p90 jumps."""
    due_s = arrivals.due_ns / NS
    qps = (len(due_s) - 1) / (due_s[-1] - due_s[0]) / nodes
    is_late = np.random.default_rng(7).random(len(due_s)) < 0.1 * (qps / 5.0) ** 0.02
    last_s = due_s + 0.1 + np.where(is_late, 1.0, 0.01) * (arrivals.output_tokens - 1)
    return Simulated(due_s + 0.1, last_s, np.zeros(len(due_s)), {"busy_s": 30.0, "kv_token_seconds": 1e6})


def test_a_latency_that_jumps_over_its_bound_has_no_interval() -> None:
    peaks = answer.NodePeaks(1, 8e6, 2e16, 4e10, 3e6, lambda work: {})
    model = answer.EngineModel(hardly_growing, lambda _: peaks, lambda _: 5.0)
    found = answer.predict(asked(), model, draws=0)
    assert (found.exit_code, found.capacity) == (summary.EXIT_OPEN, None)
    assert found.reason.startswith("p90 TPOT jumps over its bound near ")


@pytest.mark.slow
@pytest.mark.parametrize("word", ["slo.itl_p90_ms=150", "slo.itl_p99_ms=250", "slo.ttft_p90_ms=2000"])
def test_any_other_bound_has_an_answer_with_a_finite_noise(word: str) -> None:
    found = predicted(word)
    assert found.exit_code == summary.EXIT_OK and found.capacity and found.forecast
    q = found.capacity.qps_per_node
    assert q.low and q.high and q.low < q.value < q.high < 2 * q.value
    assert found.forecast.noise_pct and found.forecast.noise_pct < 100 * MOST_NOISE
