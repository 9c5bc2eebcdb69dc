"""Whole searches by this project's own driver on a scenario, and what each came to.

Knows how a search is begun and what its answer claims; knows no table.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from analysis.capacity import Capacity
from analysis.pooling import Estimate, pooled
from conf import Experiment
from loadgen.arrivals import NS
from loadgen.driver import Driver
from loadgen.plan import Plan
from loadgen.search import Start
from loadgen.sweep import sweep
from loadgen.virtual_target import VirtualTarget
from tests.benchmarks._scenarios import GUESS_QPS, GUESS_SPREAD, experiment, service, truths

PREDICTION_SD = 0.10


@dataclass(frozen=True, slots=True)
class Found:
    """One search's answer in QPS: what it reports, between which ends, what it would certify, its minutes.

    The estimate of an answer with an open end is nan.
    """

    estimate: float
    low: float
    high: float
    certified: float
    minutes: float
    windows: int = 0
    ramp_s: float = 0.0


def searched(scenario: str, seed: int, *words: str) -> Found:
    """Our search, from a guess as good as a planner's."""
    asked = experiment(scenario, *words)
    chance = np.random.default_rng([seed, 1])
    guess = GUESS_QPS * math.exp(chance.uniform(-GUESS_SPREAD, GUESS_SPREAD))
    expected = asked.search.expected_qps
    start = Start(guess, expected or truths()[scenario] * math.exp(chance.normal(0, PREDICTION_SD)))
    return begun(asked, start, seed)


def blind(scenario: str, seed: int, off: float, *words: str) -> Found:
    """Our search without a prediction, the roofline's guess being wrong by the factor `off` and a chance."""
    asked = experiment(scenario, "search.start=ramp", *words)
    chance = np.random.default_rng([seed, 3])
    guess = truths()[scenario] * off * math.exp(chance.uniform(-GUESS_SPREAD, GUESS_SPREAD))
    return begun(asked, Start(guess, ttft_s=asked.slo.ttft_p90_ms / 1e3), seed)


def begun(asked: Experiment, start: Start, seed: int) -> Found:
    """A search of a fresh node."""
    plan = Plan(asked.search, asked.slo, asked.workload, 1, seed, start)
    found = sweep(Driver(VirtualTarget(service(asked, seed)), plan, lambda _, /, **__: None))
    ramp = [outcome.dwell for outcome in found.outcomes if outcome.segment.kind == "ramp"]
    dwells = [outcome.dwell for outcome in found.outcomes if outcome.segment.kind == "dwell"]
    # Up to the first window's transition: what settles after the ramp is its cost too.
    ramp_s = (
        (min([d.start_ns for d in dwells] or [ramp[-1].window_end_ns]) - ramp[0].start_ns) / NS
        if ramp
        else 0.0
    )
    told = answer(found.capacity, found.elapsed_s / 60)
    return replace(told, windows=len(dwells), ramp_s=ramp_s)


def answer(q: Capacity | None, minutes: float) -> Found:
    """What a search came to."""
    if q is None:
        return Found(math.nan, 0.0, math.inf, 0.0, minutes)
    if q.open_above or q.open_below:  # a bound is claimed, and no estimate
        ends = 0.0 if q.open_below else q.low, math.inf if q.open_above else q.high
        return Found(math.nan, *ends, ends[0], minutes)
    return Found(q.qps_per_node, q.low, q.high, q.certified, minutes)


def published(scenario: str, seed: int) -> Found:
    """Two deployments of fifteen minutes, the second begun where the first ended, pooled."""
    first = searched(scenario, seed, "search=standard")
    begin = "search.start=prediction", f"search.expected_qps={first.estimate}"
    second = searched(scenario, seed + 500_000, "search=standard", *begin)
    both = pooled([Estimate.of_interval(each.estimate, each.low, each.high) for each in (first, second)])
    minutes = first.minutes + second.minutes
    return Found(both.qps.value, both.qps.low, both.qps.high, both.certified, minutes)
