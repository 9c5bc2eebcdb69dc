"""Comparisons of a service with one on which time runs faster, whose true ratio is known."""

import math

import numpy as np

from analysis.capacity import paired_ratio
from loadgen.drive.driver import Driver
from loadgen.drive.plan import LoadPlan
from loadgen.drive.sweep import sweep
from loadgen.search.window_plan import Start
from loadgen.studies import comparison
from tests.support.search.scenarios import FASTER, GUESS_QPS, experiment, service, truths
from tests.support.search.searches import PREDICTION_SD, Found
from tests.support.virtual.virtual_target import Faster, VirtualTarget


def compared(scenario: str, seed: int, factor: float = FASTER) -> Found:
    """The ratio of two services by paired windows: A searched for fifteen minutes, B replays A's windows.

    Where B is far from A both begin at one guess, which says nothing of the ratio.
    """
    far = factor != FASTER
    asked = experiment(scenario, "search=standard", *(["search.start=prediction"] if far else []))
    guess = truths()[scenario] * math.exp(np.random.default_rng([seed, 1]).normal(0, PREDICTION_SD))
    plan = LoadPlan(
        asked.search, asked.slo, asked.workload, 1, seed, Start(GUESS_QPS, guess if far else None)
    )
    faster = Faster(service(asked, 2 * seed + 1, factor), factor)
    targets = VirtualTarget(service(asked, 2 * seed)), VirtualTarget(faster)
    a, b = (Driver(target, plan, lambda _, /, **__: None) for target in targets)
    sweep(a)
    valid = (it for it in a.windows.outcomes if not it.void and not it.aborted)
    good = [(it.plan, it.counts) for it in valid if it.plan.kind == "window"]
    centre = comparison.ramp_centre(a)
    original = comparison.Original.of_windows(plan.seed, centre, plan.slo, good, a.windows.requests)
    found = sweep(b, lambda driver: comparison.next_replay(driver, original))
    pairs = comparison.pairs_of(b, original)
    ratio = paired_ratio.ratio([pair for pair in pairs if pair.whole], comparison.apart(b, original))
    minutes = (a.elapsed_s() + found.elapsed_s) / 60
    if ratio is None or ratio.open:
        ends = (
            (ratio.estimate.low, math.inf)
            if ratio and ratio.open == "above"
            else (0.0, ratio.estimate.high if ratio else math.inf)
        )
        return Found(math.nan, *ends, ends[0], minutes)
    return Found(ratio.estimate.value, *ratio.estimate.ends, ratio.estimate.low, minutes)
