"""Whole searches by this project's own driver on a scenario, and what each came to."""

import math
from dataclasses import dataclass, replace

import numpy as np

from analysis.capacity.posterior import Capacity
from analysis.capacity.rules import LEAST_VALID_WINDOWS
from conf import Experiment
from loadgen.drive.driver import Driver
from loadgen.drive.load_feed import LoadPlan
from loadgen.drive.loss_recovery import TargetLost
from loadgen.drive.programs import sweep
from loadgen.search.window_plan import Start
from loadgen.traffic.schedule import NS
from tests.support.search.scenarios import (
    DRIFTING,
    GUESS_SPREAD,
    drawn,
    experiment,
    guess_qps,
    target,
    truths,
)
from tests.support.virtual import fluid
from tests.support.virtual.virtual_target import VirtualTarget

PREDICTION_SD = 0.10


@dataclass(frozen=True, slots=True)
class Found:
    """One search's answer in QPS: what it reports, between which ends, what it would certify, its minutes.

    The estimate of an answer with an open end is nan; of no answer at all the ends are 0 and infinite. `stop`
    is why the search ended, `changed` whether the service is said to have changed meanwhile.
    """

    estimate: float
    low: float
    high: float
    certified: float
    minutes: float
    windows: int = 0
    ramp_s: float = 0.0
    stop: str = "budget"
    changed: bool = False


def searched(scenario: str, seed: int, *words: str, off: float = 1.0) -> Found:
    """Our search, from a guess as good as a planner's; what is expected is wrong by the factor `off` too."""
    asked = experiment(scenario, *words)
    chance = np.random.default_rng([seed, 1])
    guess = guess_qps(scenario) * math.exp(chance.uniform(-GUESS_SPREAD, GUESS_SPREAD))
    expected = truths()[scenario] * off * math.exp(chance.normal(0, PREDICTION_SD))
    start = Start(guess, asked.search.expected_qps or expected, ttft_s=asked.slo.first_token_ms / 1e3)
    return begun(scenario, asked, start, seed)


def begun(scenario: str, experiment: Experiment, start: Start, seed: int) -> Found:
    if scenario in DRIFTING:
        return concluded(fluid.searched(drawn(scenario, seed), experiment.search, start), experiment)
    return search_of(driver(target(scenario, seed), experiment, start, seed), experiment)


def driver(target: VirtualTarget, experiment: Experiment, start: Start, seed: int) -> Driver:
    """The driver of a search of one node, which nobody watches."""
    plan = LoadPlan(experiment.search, experiment.slo, experiment.workload, 1, seed, start)
    return Driver(target, plan, lambda _, /, **__: None)


def search_of(driver: Driver, experiment: Experiment) -> Found:
    """A search by this driver, and whether the service is said to have changed meanwhile."""
    try:
        result = concluded(swept(driver), experiment)
    except TargetLost:
        return Found(math.nan, 0.0, math.inf, 0.0, driver.elapsed_s() / 60, stop="lost")
    claim = driver.windows.claim()
    return replace(result, changed=bool(claim and claim.change))


def swept(driver: Driver) -> fluid.Answer:
    """A search by this driver to its end."""
    stop = sweep(driver)
    claim = driver.windows.claim()
    capacity = claim.capacity if claim else None
    return fluid.Answer(capacity, driver.windows.outcomes, stop, driver.elapsed_s())


def concluded(found: fluid.Answer, experiment: Experiment) -> Found:
    """The end of a search as `loadgen.run.verdicts` states it, and its cost."""
    ramp = [outcome.counts for outcome in found.outcomes if outcome.plan.kind == "ramp"]
    windows = [outcome for outcome in found.outcomes if outcome.plan.kind == "window"]
    # Up to the first window's transition: what settles after the ramp is its cost too.
    starts_ns = [outcome.counts.start_ns for outcome in windows]
    ramp_s = (min(starts_ns or [ramp[-1].window_end_ns]) - ramp[0].start_ns) / NS if ramp else 0.0
    minutes, stop = found.elapsed_s / 60, found.stop.kind
    valid = sum(not outcome.void for outcome in windows)
    match stop:
        case "slo_not_met_at_lowest":
            told = Found(math.nan, 0.0, experiment.search.lowest_qps, 0.0, minutes)
        case "above_highest":
            told = Found(math.nan, experiment.search.highest_qps, math.inf, 0.0, minutes)
        case "budget" if found.capacity and valid < max(LEAST_VALID_WINDOWS, experiment.search.min_windows):
            told, stop = answer(None, minutes), "void"
        case "budget":
            told = answer(found.capacity, minutes)
        case _:
            told = answer(None, minutes)
    return replace(told, windows=len(windows), ramp_s=ramp_s, stop=stop)


def answer(q: Capacity | None, minutes: float) -> Found:
    if q is None:
        return Found(math.nan, 0.0, math.inf, 0.0, minutes)
    if q.open_above or q.open_below:  # a bound is claimed, and no estimate
        ends = 0.0 if q.open_below else q.low, math.inf if q.open_above else q.high
        return Found(math.nan, *ends, ends[0], minutes)
    return Found(q.qps_per_node, q.low, q.high, q.certified, minutes)
