"""How true the search's answers are: whole searches on the engine model, against its capacity by brute force.

python -m tests.benchmarks.search_accuracy                    a few searches of each kind, some minutes
python -m tests.benchmarks.search_accuracy --replications 200 the table of docs/search_accuracy.md
python -m tests.benchmarks.search_accuracy --truth            the true capacities again (search_truth.csv)

Time is virtual, so the figures are those of the method and not of the machine that computes them.
"""

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np

from analysis import paired
from loadgen import comparison
from loadgen.driver import Driver
from loadgen.plan import Plan
from loadgen.search import Start
from loadgen.sweep import sweep
from loadgen.virtual_target import VirtualTarget
from serve_apps.engine_model import VirtualService
from tests.benchmarks._brute_force import find_truths
from tests.benchmarks._scenarios import FASTER, GUESS_QPS, SCENARIOS, experiment, service, truths
from tests.benchmarks._searches import Found, blind, published, searched
from tests.benchmarks._usual_searches import bisection, isotonic, mlperf

HEADS = (
    *("scenario", "method", "runs", "minutes", "bias %", "RMSE %"),
    *("cover", "certified over", "half-width %", "open", "windows", "ramp s"),
)


class Faster:
    """A service on which time runs `FASTER` times as fast."""

    def __init__(self, inner: VirtualService) -> None:
        self._inner = inner

    def submit(self, key: int, at_s: float, *lengths_and_stream: Any) -> None:
        self._inner.submit(key, at_s * FASTER, *lengths_and_stream)

    def retract(self, after_s: float) -> None:
        self._inner.retract(after_s * FASTER)

    def advance(self, until_s: float) -> None:
        self._inner.advance(until_s * FASTER)

    def observe(self) -> list[Any]:
        return [
            seen._replace(
                first_token_s=seen.first_token_s and seen.first_token_s / FASTER,
                last_token_s=seen.last_token_s and seen.last_token_s / FASTER,
            )
            for seen in self._inner.observe()
        ]


def compared(scenario: str, seed: int) -> Found:
    """The ratio of two services by paired windows: A searched for fifteen minutes, B replays A's windows."""
    asked = experiment(scenario, "search=standard")
    plan = Plan(asked.search, asked.slo, asked.workload, 1, seed, Start(GUESS_QPS))
    targets = VirtualTarget(service(asked, 2 * seed)), VirtualTarget(Faster(service(asked, 2 * seed + 1)))
    a, b = (Driver(target, plan, lambda _, /, **__: None) for target in targets)
    sweep(a)
    original = comparison.Original.of_driver(a)
    found = sweep(b, lambda driver: comparison.next_replay(driver, original))
    pairs = comparison.pairs_of(b, original)
    ratio = paired.ratio([pair for pair in pairs if pair.whole], comparison.apart(b, original))
    minutes = (a.elapsed_s() + found.elapsed_s) / 60
    if ratio is None:
        return Found(math.nan, 0.0, math.inf, 0.0, minutes)
    return Found(ratio.value, ratio.low, ratio.high, ratio.low, minutes)


def _method(name: str) -> Callable[[str, int], Found]:
    match name.split():
        case ["maxqps", "quick,", "guess", "x", off]:
            return lambda scenario, seed: blind(scenario, seed, float(Fraction(off)), "search=quick")
        case ["maxqps", "quick"]:
            return lambda scenario, seed: searched(scenario, seed, "search=quick")
        case ["maxqps", "2", "x", *_]:
            return published
        case ["maxqps", "compare"]:
            return compared
        case ["maxqps", minutes, "min"]:
            budget = f"search.budget_s={60 * float(minutes):g}"
            return lambda scenario, seed: searched(scenario, seed, "search=standard", budget)
        case ["bisection", seconds, "s"]:
            return lambda scenario, seed: bisection(scenario, seed, float(seconds))
        case ["isotonic", _, "s"]:
            return isotonic
        case _:
            return mlperf


BLIND = ("maxqps quick, guess x 1", "maxqps quick, guess x 1/3", "maxqps quick, guess x 3")
"""Searches that nobody places: a ramp begins from a guess that is wrong by so much."""
NAMES = (
    "maxqps quick",
    *BLIND,
    "maxqps 15 min",
    "maxqps 30 min",
    "maxqps 2 x 15 min",
    "maxqps compare",
    "bisection 60 s",
    "bisection 120 s",
    "bisection 300 s",
    "isotonic 60 s",
    "MLPerf 600 s",
)


def one(name: str, scenario: str, seed: int) -> Found:
    """One replication."""
    return _method(name)(scenario, seed)


def line(name: str, scenario: str, found: list[Found]) -> str:
    """What a method found in a scenario, as a row of a table."""
    truth = truths("faster_ratio" if name.endswith("compare") else "capacity_qps")[scenario]
    return row(f"{scenario} | {name}", truth, found)


def row(title: str, truth: float, found: list[Found]) -> str:
    """Bias, RMSE, cover, violations and cost of many answers to one question, as a row of a table."""
    known = [each for each in found if math.isfinite(each.estimate)]
    error = np.array([math.log(each.estimate / truth) for each in known])
    covers = np.mean([each.low <= truth <= each.high for each in found if each.low or each.high < math.inf])
    over = np.mean([each.certified > truth for each in found])
    half = np.median([math.log(each.high / max(each.low, 1e-9)) / 2 for each in known])
    minutes = np.mean([each.minutes for each in found])
    spread = math.sqrt(float((error**2).mean()))
    windows, ramp_s = (np.mean([getattr(each, name) for each in found]) for name in ("windows", "ramp_s"))
    return (
        f"| {title} | {len(found)} | {minutes:.1f} | {100 * error.mean():+.2f} ± "
        f"{100 * error.std() / math.sqrt(len(known)):.2f} | {100 * spread:.2f} | {covers:.3f} | {over:.3f} | "
        f"{100 * half:.1f} | {len(found) - len(known)} | {windows:.1f} | {ramp_s:.0f} |"
    )


def table(names: list[str], scenarios: list[str], replications: int, first: int) -> Iterator[str]:
    """The table, row by row."""
    yield f"| {' | '.join(HEADS)} |"
    yield f"|{'---|' * len(HEADS)}"
    with ProcessPoolExecutor() as pool:
        for scenario in scenarios:
            for name in names:
                seeds = range(first, first + replications)
                jobs = [pool.submit(one, name, scenario, seed) for seed in seeds]
                yield line(name, scenario, [job.result() for job in jobs])


def main() -> None:
    """Print the table, or find the truths."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--truth", action="store_true", help="find the true capacities by brute force")
    parser.add_argument("--replications", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, help="seed of the first replication")
    parser.add_argument("--methods", nargs="*", default=list(NAMES), choices=NAMES)
    parser.add_argument("--scenarios", nargs="*", default=list(SCENARIOS), choices=list(SCENARIOS))
    asked = parser.parse_args()
    if asked.truth:
        find_truths()
        return
    began_s = time.monotonic()
    for text in table(asked.methods, asked.scenarios, asked.replications, asked.first):
        print(text, flush=True)
    load_now = os.getloadavg()[0]
    print(f"\n{(time.monotonic() - began_s) / 60:.1f} min on {os.cpu_count()} cores, load {load_now:.1f}")


if __name__ == "__main__":
    main()
