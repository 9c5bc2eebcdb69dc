"""loadgen/predict/capacity.py, uncertainty.py: Monte Carlo noise, and p90s under drawn constants."""

import math
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from analysis.results.json_border import to_tree
from conf import Experiment
from loadgen.cli import engine_model, prediction
from loadgen.predict.answer import at_rate
from loadgen.predict.capacity import PredictedCapacity, RateRoot, Solution, predicted_capacity, with_slope
from loadgen.predict.draws import drawn
from loadgen.predict.operating_point import Effort, RateSimulator, Simulated
from loadgen.predict.uncertainty import DRAWS, QuantileDraws, SimulatedQuantiles, quantile_draws
from loadgen.traffic.schedule import NS, ArrivalSchedule
from tests.support.runs.verdict_trees import text_of
from tests.support.virtual.known_answer import LAYER, MODEL, simulate, slowness, unsure


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
    scatter = 1.96 * np.std(np.log([one.root.rate_qps for one in answers]), ddof=1)
    claimed = math.sqrt(np.mean([noise(one) ** 2 for one in answers]))
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


def queueing(experiment: Experiment, arrivals: ArrivalSchedule, nodes: int, seed: int) -> Simulated:
    """The known service, which ends 6 requests a second at most, fewer where it is slower."""
    seen = simulate(experiment, arrivals, nodes, seed)
    turn_s = np.arange(1, len(seen.first_s) + 1) * slowness(experiment) / 6.0
    wait_s = np.maximum(turn_s - arrivals.due_ns / NS, 0.0)
    return seen._replace(first_s=seen.first_s + wait_s, last_s=seen.last_s + wait_s)


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
    found = known.figure("tpot", 88.0, (86.0, 90.0), 100.0)
    assert found.ms and found.by_constants
    (low, high), (lowest, highest) = found.by_constants.ends, found.ms.ends
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
