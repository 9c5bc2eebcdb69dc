"""Comparisons of a service with one on which time runs faster, whose true ratio is known.

Knows whole searches of both; knows no table.
"""

import math
from typing import Any

import numpy as np

from analysis.capacity import paired_ratio
from loadgen.drive.driver import Driver
from loadgen.drive.plan import LoadPlan
from loadgen.drive.sweep import sweep
from loadgen.predict.virtual_target import VirtualTarget
from loadgen.search.start import Start
from loadgen.studies import comparison
from serve_apps.engine_model import VirtualService
from tests.benchmarks._scenarios import FASTER, GUESS_QPS, experiment, service, truths
from tests.benchmarks._searches import PREDICTION_SD, Found


class Faster:
    """A service on which time runs `factor` times as fast."""

    def __init__(self, inner: VirtualService, factor: float = FASTER) -> None:
        self._inner, self._factor = inner, factor

    def submit(self, key: int, at_s: float, *lengths_and_stream: Any) -> None:
        self._inner.submit(key, at_s * self._factor, *lengths_and_stream)

    def retract(self, after_s: float) -> None:
        self._inner.retract(after_s * self._factor)

    def advance(self, until_s: float) -> None:
        self._inner.advance(until_s * self._factor)

    def observe(self) -> list[Any]:
        return [
            seen._replace(
                first_token_s=seen.first_token_s and seen.first_token_s / self._factor,
                last_token_s=seen.last_token_s and seen.last_token_s / self._factor,
            )
            for seen in self._inner.observe()
        ]


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
    faster = Faster(service(asked, 2 * seed + 1), factor)
    targets = VirtualTarget(service(asked, 2 * seed)), VirtualTarget(faster)
    a, b = (Driver(target, plan, lambda _, /, **__: None) for target in targets)
    sweep(a)
    original = comparison.Original.of_driver(a)
    found = sweep(b, lambda driver: comparison.next_replay(driver, original))
    pairs = comparison.pairs_of(b, original)
    ratio = paired_ratio.ratio([pair for pair in pairs if pair.whole], comparison.apart(b, original))
    minutes = (a.elapsed_s() + found.elapsed_s) / 60
    if ratio is None or ratio.open:
        ends = (
            (ratio.low, math.inf)
            if ratio and ratio.open == "above"
            else (0.0, ratio.high if ratio else math.inf)
        )
        return Found(math.nan, *ends, ends[0], minutes)
    return Found(ratio.value, ratio.low, ratio.high, ratio.low, minutes)
