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
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction

import numpy as np

from analysis.capacity import paired_ratio
from analysis.stats.estimate import Estimate
from analysis.stats.pooling import Measured, pooled
from loadgen.drive.driver import Driver
from loadgen.drive.programs import sweep
from loadgen.search.window_plan import Start
from loadgen.studies import comparison
from tests.benchmarks._brute_force import find_truths
from tests.support.search.scenarios import (
    BOUNDS,
    EDGES,
    FASTER,
    GUESS_QPS,
    GUESS_SPREAD,
    METHOD,
    SCENARIOS,
    experiment,
    service,
    truths,
)
from tests.support.search.searches import PREDICTION_SD, Found, answer, begun, driver, searched
from tests.support.virtual.virtual_target import Faster, VirtualTarget

FAR_RATIOS = {
    "S2": {"1.35": 1.4855, "1.7": 1.9885, "0.75": 0.6572, "0.6": 0.4650},
    "S4": {"1.35": 1.4744, "1.7": 1.9642, "0.75": 0.6708, "0.6": 0.4790},
}
"""True ratios of comparisons whose B is faster by the factor, by `root` at bounds wider by the factor, of 15
virtual hours at each of two rates (standard error 0.2 %)."""
HEADS = (
    *("scenario", "method", "runs", "minutes", "bias %", "RMSE %"),
    *("cover", "certified over", "half-width %", "open", "windows", "ramp s", "wrong bounds", "other ends"),
)


def blind(scenario: str, seed: int, off: float, *words: str) -> Found:
    """Our search without a prediction, the roofline's guess being wrong by the factor `off` and a chance."""
    asked = experiment(scenario, "search.start=ramp", *words)
    chance = np.random.default_rng([seed, 3])
    guess = truths()[scenario] * off * math.exp(chance.uniform(-GUESS_SPREAD, GUESS_SPREAD))
    return begun(scenario, asked, Start(guess, ttft_s=asked.slo.first_token_ms / 1e3), seed)


def published(scenario: str, seed: int) -> Found:
    """Two deployments of fifteen minutes, the second begun where the first ended, pooled."""
    first = searched(scenario, seed, "search=standard")
    begin = ["search.start=prediction", f"search.expected_qps={first.estimate}"]
    if not math.isfinite(first.estimate):
        begin = []
    second = searched(scenario, seed + 500_000, "search=standard", *begin)
    if not math.isfinite(first.estimate + second.estimate):
        return answer(None, (first.minutes + second.minutes))
    both = pooled(
        [Measured.from_estimate(Estimate(each.estimate, each.low, each.high)) for each in (first, second)]
    )
    minutes = first.minutes + second.minutes
    return Found(both.qps.value, both.qps.low, both.qps.high, both.qps.certified, minutes)


def compared(scenario: str, seed: int, factor: float = FASTER) -> Found:
    """The ratio of two services by paired windows: A searched for fifteen minutes, B replays A's windows.

    Where B is far from A both begin at one guess, which says nothing of the ratio.
    """
    far = factor != FASTER
    asked = experiment(scenario, "search=standard", *(["search.start=prediction"] if far else []))
    guess = truths()[scenario] * math.exp(np.random.default_rng([seed, 1]).normal(0, PREDICTION_SD))
    start = Start(GUESS_QPS, guess if far else None)
    faster = Faster(service(asked, 2 * seed + 1, factor), factor)
    a, b = (driver(VirtualTarget(it), asked, start, seed) for it in (service(asked, 2 * seed), faster))
    ratio = replayed(a, b)[1]
    minutes = (a.elapsed_s() + b.elapsed_s()) / 60
    if ratio is None or ratio.open:
        ends = (
            (ratio.estimate.low, math.inf)
            if ratio and ratio.open == "above"
            else (0.0, ratio.estimate.high if ratio else math.inf)
        )
        return Found(math.nan, *ends, ends[0], minutes)
    return Found(ratio.estimate.value, *ratio.estimate.ends, ratio.estimate.low, minutes)


def replayed(a: Driver, b: Driver) -> tuple[int, paired_ratio.Ratio | None]:
    """A searches and B replays its windows: the number of whole pairs, and the ratio of B to A."""
    sweep(a)
    original = comparison.Original(comparison.PlayedWindows.of_driver(a))
    sweep(b, lambda driver: comparison.next_replay(driver, original))
    played = comparison.PlayedWindows.of_driver(b)
    pairs = [pair for pair in original.pairs(played) if pair.whole]
    return len(pairs), paired_ratio.ratio(pairs, played.centre - original.centre)


def _method(name: str) -> Callable[[str, int], Found]:
    match name.split():
        case ["maxqps", "quick,", "guess", "x", off]:
            return lambda scenario, seed: blind(scenario, seed, float(Fraction(off)), "search=quick")
        case ["maxqps", "quick,", "told", "x", off]:
            return lambda scenario, seed: searched(scenario, seed, "search=quick", off=float(Fraction(off)))
        case ["maxqps", "quick"]:
            return lambda scenario, seed: searched(scenario, seed, "search=quick")
        case ["maxqps", "2", "x", *_]:
            return published
        case ["maxqps", "compare"]:
            return compared
        case ["maxqps", "compare", "x", factor]:
            return lambda scenario, seed: compared(scenario, seed, float(factor))
        case ["maxqps", minutes, "min"]:
            budget = f"search.budget_s={60 * float(minutes):g}"
            return lambda scenario, seed: searched(scenario, seed, "search=standard", budget)
        case _:
            raise ValueError(f"no method {name}")


BLIND = ("maxqps quick, guess x 1", "maxqps quick, guess x 1/3", "maxqps quick, guess x 3")
"""Searches that nobody places: a ramp begins from a guess that is wrong by so much."""
TOLD = "maxqps quick, told x 1/3"
"""A search that a prediction places three times too low."""
FAR = tuple(f"maxqps compare x {factor}" for factor in FAR_RATIOS["S2"])
"""Comparisons of services that differ much; in S2 and S4 alone the true ratio is known."""
NAMES = (
    "maxqps quick",
    *BLIND,
    TOLD,
    "maxqps 15 min",
    "maxqps 30 min",
    "maxqps 60 min",
    "maxqps 2 x 15 min",
    "maxqps compare",
    *FAR,
)
EDGE_NAMES = {
    "T20": ("maxqps 15 min", BLIND[0]),
    "F003": ("maxqps quick", TOLD),
    "P5": ("maxqps 2 x 15 min",),
}
"""Rows of an edge, where nobody chooses; of the others `quick` and 15 minutes."""


def is_compared(scenario: str) -> bool:
    """True where the ratio to a faster service of our engine is known."""
    ours = {**METHOD, **BOUNDS}
    return scenario in ours and math.isfinite(truths("faster_ratio").get(scenario, math.nan))


def names_of(scenario: str) -> tuple[str, ...]:
    """The methods that are tried on a scenario where nobody chooses."""
    if scenario in EDGES:
        return EDGE_NAMES.get(scenario, ("maxqps quick", "maxqps 15 min"))
    left_out = (TOLD, "maxqps 60 min", *([] if is_compared(scenario) else ["maxqps compare"]))
    left_out += () if scenario in FAR_RATIOS else FAR
    return tuple(name for name in NAMES if name not in left_out)


def one(name: str, scenario: str, seed: int) -> Found:
    """One replication; raises ValueError for a method that a scenario has no service for."""
    no_ratio = name.endswith("compare") and not is_compared(scenario)
    if no_ratio or (name in FAR and scenario not in FAR_RATIOS):
        raise ValueError(f"{name} needs a service of our engine, and {scenario} is none")
    return _method(name)(scenario, seed)


def line(name: str, scenario: str, founds: list[Found]) -> str:
    """What a method found in a scenario, as a row of a table."""
    truth = (
        FAR_RATIOS[scenario][name.split()[-1]]
        if name in FAR
        else truths("faster_ratio" if name.endswith("compare") else "capacity_qps")[scenario]
    )
    return row(f"{scenario} | {name}", truth, founds)


def row(title: str, truth: float, founds: list[Found]) -> str:
    """Bias, RMSE, cover, violations and cost of many answers to one question, as a row of a table.

    An answer with an open end is a bound, which is wrong where the truth lies beyond it; without any end it
    claims nothing, and no share counts it. `other ends` are the searches that something else than their
    budget ended, and those of a service that is said to have changed.
    """
    known = [each for each in founds if math.isfinite(each.estimate)]
    claims = [each for each in founds if each.low or each.high < math.inf]
    covers = [each.low <= truth <= each.high for each in claims]
    wrong = sum(
        not cover for cover, each in zip(covers, claims, strict=True) if not math.isfinite(each.estimate)
    )
    over = np.mean([each.certified > truth for each in founds])
    minutes, windows, ramp_s = (
        np.mean([getattr(each, name) for each in founds]) for name in ("minutes", "windows", "ramp_s")
    )
    stops = Counter(each.stop for each in founds if each.stop != "budget")
    stops += Counter(changed=sum(each.changed for each in founds))
    ends = ", ".join(f"{count} {stop}" for stop, count in stops.items())
    bias, spread, half = _errors(truth, known)
    return (
        f"| {title} | {len(founds)} | {minutes:.1f} | {bias} | {spread} | "
        f"{np.mean(covers) if covers else math.nan:.3f} | {over:.3f} | {half} | {len(founds) - len(known)} | "
        f"{windows:.1f} | {ramp_s:.0f} | {wrong} | {ends or '-'} |"
    )


def _errors(truth: float, known: list[Found]) -> tuple[str, str, str]:
    """Bias, RMSE and median half-width in percent; dashes where no answer is a number."""
    if not known:
        return "-", "-", "-"
    error = np.array([math.log(each.estimate / truth) for each in known])
    half = np.median([math.log(each.high / max(each.low, 1e-9)) / 2 for each in known])
    unsure = 100 * error.std() / math.sqrt(len(known))
    spread = math.sqrt(float((error**2).mean()))
    return f"{100 * error.mean():+.2f} ± {unsure:.2f}", f"{100 * spread:.2f}", f"{100 * half:.1f}"


def table(
    names: list[str] | None, scenarios: list[str], seeds: range, processes: int | None
) -> Iterator[str]:
    """The table, row by row; without names those of each scenario."""
    yield f"| {' | '.join(HEADS)} |"
    yield f"|{'---|' * len(HEADS)}"
    with ProcessPoolExecutor(processes) as pool:
        for scenario in scenarios:
            for name in names or names_of(scenario):
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
    parser.add_argument("--processes", type=int, help="side by side; as many as the machine has cores")
    parser.add_argument("--methods", nargs="*", choices=NAMES, help="those of each scenario")
    parser.add_argument("--scenarios", nargs="*", default=list(SCENARIOS), choices=list(SCENARIOS))
    options = parser.parse_args()
    if options.truth:
        find_truths(options.scenarios)
        return
    began_s = time.monotonic()
    seeds = range(options.first, options.first + options.replications)
    for text in table(options.methods, options.scenarios, seeds, options.processes):
        print(text, flush=True)
    load_now = os.getloadavg()[0]
    print(f"\n{(time.monotonic() - began_s) / 60:.1f} min on {os.cpu_count()} cores, load {load_now:.1f}")


if __name__ == "__main__":
    main()
