"""loadgen/predict/capacity.py, uncertainty.py: noise, drawn constants, and bounds that no rate keeps."""

import doctest
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.results import summary
from analysis.results.json_border import to_tree
from analysis.results.predictions import PredictionVerdict
from conf import Experiment, load
from loadgen.cli import engine_model, prediction
from loadgen.predict import answer, capacity
from loadgen.predict.answer import at_rate
from loadgen.predict.capacity import (
    MOST_NOISE,
    PredictedCapacity,
    RateRoot,
    Solution,
    predicted_capacity,
    with_slope,
)
from loadgen.predict.draws import drawn
from loadgen.predict.operating_point import Effort, RateSimulator, Simulated
from loadgen.predict.uncertainty import DRAWS, QuantileDraws, SimulatedQuantiles, quantile_draws
from loadgen.traffic.schedule import NS, ArrivalSchedule
from tests.support.runs.verdict_trees import screen, text_of
from tests.support.virtual.known_answer import LAYER, MODEL, queueing, simulate, unsure

PREDICTED = yaml.safe_load((Path(__file__).parents[2] / "data" / "predictions.yaml").read_text())


@cache
def found(seed: int, start: float = 1.0, budget_s: int = 3600) -> PredictedCapacity:
    asked = prediction.checked([f"search.budget_s={budget_s}", f"seed={seed}"], None)
    return predicted_capacity(asked, engine_model.simulate, 5.3 * start)


def noise(solution: Solution) -> float:
    assert solution.noise is not None
    return solution.noise


def test_the_answer_and_its_noise_do_not_depend_on_where_the_search_began() -> None:
    first, *others = (found(3, start, 1200).answer for start in (1.0, 0.82, 1.2))
    for other in others:
        assert abs(math.log(other.root.rate_qps / first.root.rate_qps)) < noise(first)
        assert noise(other) == pytest.approx(noise(first), rel=0.15)


@pytest.mark.slow
def test_the_noise_that_is_claimed_is_that_of_seeds() -> None:
    answers = [found(seed).answer for seed in range(12)]
    scatter = 1.96 * np.std(np.log([answer.root.rate_qps for answer in answers]), ddof=1)
    claimed = math.sqrt(np.mean([noise(answer) ** 2 for answer in answers]))
    # Twelve seeds know their scatter to a fifth.
    assert 0.6 < claimed / scatter < 1.6
    assert max(map(noise, answers)) < 2 * min(map(noise, answers))


def test_the_slope_is_read_between_rates_well_apart() -> None:
    simulator = RateSimulator(unsure({}), simulate, Effort.from_budget(600))
    near = Solution(RateRoot(5.0, slope=17.0), simulator.at(5.0))
    # ln p90 of the known service grows as ln rate does.
    assert with_slope(simulator, near).root.slope == pytest.approx(1.0, abs=0.01)
    end = replace(near, root=RateRoot(5.0, 17.0, side=1))
    assert with_slope(simulator, end) is end


def test_a_p90_at_a_rate_has_the_interval_of_the_constants() -> None:
    tree = to_tree(at_rate(unsure({LAYER: 1.25}, "rate_qps=4"), MODEL))
    tpot = tree["probe"]["limits"]["tpot"]
    assert ends(tpot["by_constants"]) == pytest.approx((80 / 1.25, 80 * 1.25), rel=0.05)
    assert ends(tpot["ms"]) == pytest.approx(ends(tpot["by_constants"]), rel=0.01)
    assert ends(tpot["by_noise"]) == pytest.approx((80, 80), rel=0.01)
    text = text_of(tree)
    assert re.search(r"p90 TPOT: 80\.0 ms, 95 % \[6[34]", text), text
    assert "Monte Carlo noise alone" in text
    exact = to_tree(at_rate(unsure({}, "rate_qps=4"), MODEL))["probe"]["limits"]["tpot"]
    assert exact["by_constants"] is None and exact["ms"] == exact["by_noise"]


def ends(figure: dict[str, float]) -> tuple[float, float]:
    return figure["low"], figure["high"]


def test_an_overload_in_some_draws_is_an_open_upper_end() -> None:
    asked = unsure({LAYER: 2.0}, "rate_qps=5")
    tree = to_tree(at_rate(asked, replace(MODEL, simulate=queueing)))
    over = sum(one[LAYER] > 100 * 6 / 5 * 1.1 for one in drawn(asked, DRAWS))
    assert tree["forecast"]["of_rate"]["overloaded_draws"] == pytest.approx(over, abs=2)
    low, high = ends(tree["probe"]["limits"]["tpot"]["ms"])
    assert low < 60 and high is None
    text = text_of(tree)
    assert ", open] (Monte Carlo noise alone [" in text and "the queue grows without end in" in text


def test_draws_of_any_experiment_give_an_interval_around_a_longer_run() -> None:
    known = quantile_draws(RateSimulator(unsure({LAYER: 1.25}), simulate, Effort.from_budget(60)), 4.0)
    assert known.base.quantiles_ms["tpot"] == pytest.approx(80.0, rel=0.01) and len(known.draws) == DRAWS
    summed = known.summed
    assert summed.kept_probability == pytest.approx(0.97, abs=0.03) and summed.overloaded_draws == 0
    result = known.figure("tpot", 88.0, (86.0, 90.0), 100.0)
    assert result.ms and result.by_constants
    (low, high), (lowest, highest) = result.by_constants.ends, result.ms.ends
    assert (low, high) == pytest.approx((88 / 1.25, 88 * 1.25), rel=0.05)
    assert lowest < low and highest > high
    assert known.figure("ttft", None, None, 2000.0).ms is None
    lost = QuantileDraws(
        SimulatedQuantiles({"ttft": None, "tpot": 80.0}, True),
        (SimulatedQuantiles({"ttft": None, "tpot": 9e9}, False, False),),
        (),
    )
    assert lost.constants_ms("tpot", 80.0) == (80.0, None) and lost.constants_ms("ttft", 80.0) is None


def test_a_time_of_zero_is_a_time() -> None:
    """Few requests wait in the queue, and under some constants none do."""

    def seen(ms: float) -> SimulatedQuantiles:
        return SimulatedQuantiles({"queue_p90": ms}, True)

    draws = tuple(seen(ms) for ms in (0.0, 0.0, 40.0, 80.0))
    for base, found_ms in ((0.0, 0.0), (10.0, 0.0), (0.0, 20.0), (20.0, 20.0)):
        known = QuantileDraws(seen(base), draws, ())
        low, high = known.constants_ms("queue_p90", found_ms) or (math.nan, None)
        assert low == 0.0 and high is not None and high > 40.0
        told = known.figure("queue_p90", found_ms, (found_ms - 2, found_ms + 2), 500.0)
        assert told.ms and told.ms.low == 0.0 and (told.ms.high or 0.0) >= high


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
    result = predicted("slo.itl_p99_ms=150")
    assert (result.exit_code, result.capacity, result.no_rate) == (summary.EXIT_SLO_MISSED, None, True)
    gap_ms = capacity.gap_beside_prompt_ms(asked(), engine_model.simulate)
    over = f"{gap_ms:.1f} ms, {100 * (gap_ms / 150 - 1):.0f} % over it"
    said = f"one prompt beside an answer makes a gap of {over}"
    assert result.reason.startswith(f"no rate keeps p99 ITL <= 150 ms where requests meet: {said}")
    said = screen(result)
    assert said.startswith("PREDICTED  no rate keeps the bounds; requests of 5600/140 tokens\n")
    assert "95 %" not in said and "noise" not in said


def test_a_bound_on_gaps_takes_no_capacity_that_another_bound_limits() -> None:
    result = predicted("slo.ttft_p90_ms=305", "workload.output_tokens.mean=40", "slo.itl_p50_ms=150")
    assert (result.exit_code, result.no_rate, result.reason) == (summary.EXIT_OK, False, "")
    assert result.capacity and result.capacity.binding == "ttft"
    assert result.capacity.qps_per_node.value == pytest.approx(0.58, rel=0.05)


def test_the_answers_at_a_quantile_meet_as_many_prompts_as_a_poisson_number() -> None:
    assert doctest.testmod(capacity).failed == 0


@pytest.mark.parametrize(("words", "is_missed"), PREDICTED["gaps"].items())
def test_gaps_that_a_bound_ignores_do_not_break_it(words: str, is_missed: bool) -> None:
    experiment = asked(*words.split())
    (limit,) = experiment.slo.at_most_ms
    rare: Any = SimpleNamespace(binding=limit, rate_qps=0.01, e2e_s=1.0)  # requests hardly ever meet
    assert bool(capacity.missed_beside_prompt(rare, experiment, engine_model.simulate)) == is_missed


def test_a_bound_that_requests_alone_miss_has_no_rate() -> None:
    result = predicted("slo.ttft_p90_ms=200")
    assert result.reason == (
        "no rate keeps p90 TTFT <= 200 ms: requests that meet no other have 228.2 ms, 14 % over it"
    )
    assert (result.exit_code, result.no_rate) == (summary.EXIT_SLO_MISSED, True)


def test_a_bound_that_requests_alone_keep_is_missed_at_the_lowest_rate() -> None:
    result = predicted("slo.ttft_p90_ms=235", "search.lowest_qps=.2")
    assert result.exit_code == summary.EXIT_SLO_MISSED and not result.no_rate
    assert "even at 0.2 QPS per node (search.lowest_qps) p90 TTFT is over its bound" in result.reason


def hardly_growing(experiment: Experiment, arrivals: ArrivalSchedule, nodes: int, _seed: int) -> Simulated:
    """One answer in ten or so is 100 times as slow, hardly more of them with the rate: the p90 jumps."""
    due_s = arrivals.due_ns / NS
    qps = (len(due_s) - 1) / (due_s[-1] - due_s[0]) / nodes
    is_late = np.random.default_rng(7).random(len(due_s)) < 0.1 * (qps / 5.0) ** 0.02
    last_s = due_s + 0.1 + np.where(is_late, 1.0, 0.01) * (arrivals.output_tokens - 1)
    work = {"busy_s": 30.0, "kv_token_seconds": 1e6}
    return Simulated(due_s, due_s + 0.1, last_s, np.zeros(len(due_s)), work)


def test_a_latency_that_jumps_over_its_bound_has_no_interval() -> None:
    peaks = answer.NodePeaks(8e6, 2e16, 4e10, 3e6, lambda work: {})
    model = answer.EngineModel(hardly_growing, lambda _: peaks, lambda _: 5.0)
    result = answer.predict(asked(), model, draws=0)
    assert (result.exit_code, result.capacity) == (summary.EXIT_OPEN, None)
    assert result.reason.startswith("p90 TPOT jumps over its bound near ")


@pytest.mark.slow
@pytest.mark.parametrize("word", ["slo.itl_p90_ms=150", "slo.itl_p99_ms=250", "slo.ttft_p90_ms=2000"])
def test_any_other_bound_has_an_answer_with_a_finite_noise(word: str) -> None:
    result = predicted(word)
    assert result.exit_code == summary.EXIT_OK and result.capacity and result.forecast
    q = result.capacity.qps_per_node
    assert q.low and q.high and q.low < q.value < q.high < 2 * q.value
    assert result.forecast.noise_pct and result.forecast.noise_pct < 100 * MOST_NOISE
