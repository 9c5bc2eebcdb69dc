"""How true the search's answers are on services that are none of ours: floors, drift, low rates, queues.

python -m tests.benchmarks.foreign_services                       a few searches of each kind
python -m tests.benchmarks.foreign_services --replications 48     the table
python -m tests.benchmarks.foreign_services --truth               the true capacities again
python -m tests.benchmarks.foreign_services --quantiles           the intervals of measured p90s
python -m tests.benchmarks.foreign_services --compare             how often two identical services differ
python -m tests.benchmarks.foreign_services --compare --faster 1.1      how often a faster one is seen

The services stand behind the seam that the driver loads, on a virtual clock.
"""

import argparse
import csv
import math
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from analysis.stats.dispersion import quantile_interval
from analysis.stats.quantiles import quantile
from conf import Experiment, load
from loadgen.search.window_plan import Start
from loadgen.studies.comparison import PairedReplays
from loadgen.traffic.schedule import NS
from loadgen.traffic.traffic import Traffic
from tests.benchmarks._foreign_queues import Network, QueueNetwork
from tests.benchmarks._foreign_steps import Floats, InTurn, StepServer, Traits
from tests.benchmarks.search_accuracy import HEADS, replayed, row
from tests.support.search.scenarios import GUESS_SPREAD
from tests.support.search.searches import PREDICTION_SD, Found, driver, search_of
from tests.support.virtual.virtual_target import Faster, VirtualTarget

TRUTH = Path(__file__).with_name("foreign_truth.csv")
CHAT = (
    "workload=smoke",
    "workload.input_tokens.kind=lognormal",
    "workload.input_tokens.mean=1500",
    "workload.input_tokens.cv=.6",
    "workload.output_tokens.kind=lognormal",
    "workload.output_tokens.mean=150",
    "workload.output_tokens.cv=.6",
)
"""Lengths of every service but one."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A service, the bounds on its p90s in ms, and the words of its workload; `near_qps` begins the truth."""

    service: Traits | Network
    near_qps: float
    ttft_ms: float = 1500.0
    tpot_ms: float = 60.0
    words: tuple[str, ...] = CHAT
    predictions: tuple[str, ...] = ("quick", "standard")


SEEN = ("quick", "standard")
FAR = (*SEEN, "quick x 1/2", "quick x 1/3", "quick x 3")
SCENARIOS = {
    "control": Scenario(Traits(), 6.5, predictions=FAR),
    "floor": Scenario(
        Traits(dear_share=0.085, dear_times=45.0, fair=True), 2.5, ttft_ms=600.0, tpot_ms=150.0
    ),
    "noisy": Scenario(Traits(noisy_times=1.2), 6.0),
    "memory": Scenario(Traits(memory_times=1.15), 6.0),
    "stalls": Scenario(Traits(stall_every_s=40.0), 5.0, predictions=FAR),
    "late": Scenario(Traits(late_share=0.055), 6.0, predictions=("quick", "standard", "quick x 1/2")),
    "warming": Scenario(Traits(cold_times=1.8), 6.5),
    "lame": Scenario(
        Traits(replicas=12, lame_times=1.4, step_s=0.02, answer_s=0.002, prompt_s=60e-6), 20.0, tpot_ms=70.0
    ),
    "long": Scenario(
        Traits(prompt_s=120e-6), 0.25, ttft_ms=6000.0, tpot_ms=600.0,
        words=(*CHAT, "workload.input_tokens.mean=16000", "workload.input_tokens.cv=.3"), predictions=FAR,
    ),
    "queue": Scenario(Network(16, 2.0, cv=2.0), 7.0, tpot_ms=1000.0),
    "erlang": Scenario(Network(8, 1.2), 6.0, tpot_ms=1000.0),
    "gamma": Scenario(
        Traits(), 6.0, words=(*CHAT, "workload.arrivals.kind=gamma", "workload.arrivals.burstiness=.25")
    ),
    "dear": Scenario(Traits(dear_share=0.09, dear_times=8.0), 5.0),
    "full": Scenario(Traits(held_tokens=45_000.0), 6.0),
    "changing": Scenario(Traits(changed_s=460.0, changed_times=1.12), 6.0, predictions=("standard",)),
}  # fmt: skip
"""By name. `floor`: 8 % of the prompts cost 45 times as much and are over the bound at any load. `noisy`: a
neighbour makes it 20 % slower, for a minute after each three in the mean. `memory`: up to 15 % slower with
the batch of the last three minutes. `late`: 5.5 % of the first tokens come 5 s late at any load. `lame`: one
of twelve replicas in turn is 40 % slower. `full`: too little memory for all answers, the youngest gives way.
`changing`: 12 % slower from the middle of a standard search on; the truth is that of the slower one.
"""
PARTS, REQUESTS = 10, 60_000
"""Runs at a rate for a true capacity, and the requests of each, of which the first tenth is not counted."""
WINDOWS, WINDOWS_S, APART_S = 120, (60, 300, 600), 700.0
"""Windows of a measured p90, their lengths, and the time from one to the next."""
STEP = 0.03
"""ln distance from the capacity to the rates that give the slope for its error."""


@cache
def experiment(name: str, *words: str) -> Experiment:
    """The experiment of a scenario."""
    scenario = SCENARIOS[name]
    given: dict[str, str] = {}
    for word in scenario.words:
        key, _, value = word.partition("=")
        given[key] = value
    bounds = f"slo.ttft_p90_ms={scenario.ttft_ms:g}", f"slo.tpot_p90_ms={scenario.tpot_ms:g}"
    return load([*(f"{key}={value}" for key, value in given.items()), *bounds, *words])


def service(name: str, seed: int, hours: float = 3.0) -> Any:
    """A fresh service of a scenario."""
    scenario = SCENARIOS[name].service
    if isinstance(scenario, Network):
        return QueueNetwork(scenario, seed)
    return StepServer(scenario, seed, hours) if scenario.replicas == 1 else InTurn.of(scenario, seed, hours)


@cache
def truths() -> dict[str, float]:
    """True capacities in QPS, as brute force wrote them."""
    with TRUTH.open() as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {row["scenario"]: float(row["capacity_qps"]) for row in rows}


def latencies(name: str, rate_qps: float, part: int) -> list[Floats]:
    """Due times, TTFT and TPOT in seconds of a long run at one rate, without its first tenth."""
    drawn = Traffic(experiment(name).workload).first(REQUESTS, rate_qps, window_index=0, seed=70_000 + part)
    at: Floats = drawn.due_ns / NS
    fresh = service(name, 70_000 + part, hours=at[-1] / 3600 + 1)
    fresh.warmed(True)
    fresh.add(at, drawn.input_tokens.astype(np.float64), drawn.output_tokens)
    fresh.advance(math.inf)
    return [each[REQUESTS // 10 :] for each in (at, *fresh.latencies())]


def shares(name: str, rate_qps: float, part: int) -> list[float]:
    """Shares of the requests over TTFT and TPOT in a long run at one rate."""
    scenario, (_, ttft, tpot) = SCENARIOS[name], latencies(name, rate_qps, part)
    return [
        float(np.mean(values[~np.isnan(values)] > bound / 1e3))
        for values, bound in ((ttft, scenario.ttft_ms), (tpot, scenario.tpot_ms))
    ]


def quantile_rows(name: str, share: float) -> Iterator[str]:
    """How often the interval of a p90 is given and covers the p90 of all runs, at a share of the capacity."""
    runs = [latencies(name, share * truths()[name], 100 + part) for part in range(PARTS)]
    for column, limit in ((1, "ttft"), (2, "tpot")):
        true = quantile(np.concatenate([run[column] for run in runs]), 0.9) or 0.0
        figures = []
        for seconds in WINDOWS_S:
            items = []
            for run in runs:
                begins = np.arange(run[0][0], run[0][-1] - seconds, APART_S)[: WINDOWS // PARTS]
                for first, end in np.searchsorted(run[0], [begins, begins + seconds]).T:
                    items.append(quantile_interval(run[column][first:end], 0.9, seconds).ends)
            given = [ends for ends in items if ends]
            cover = [ends[0] - 1e-9 <= true <= ends[1] + 1e-9 for ends in given]
            figures.append(f"{np.mean(cover) if cover else math.nan:.2f} of {len(given)} / {len(items)}")
        yield f"| {name} | {share:g} | {limit} | {' | '.join(figures)} |"


def truth(name: str) -> str:
    """A line of the table of truths: where the larger of the mean shares is a tenth."""

    def seen(rate_qps: float) -> tuple[Floats, int]:
        each = np.array([shares(name, rate_qps, part) for part in range(PARTS)])
        column = int(np.argmax(each.mean(axis=0)))
        return each[:, column], column

    low, high = (math.log(SCENARIOS[name].near_qps * times) for times in (0.3, 1.8))
    while high - low > 0.002:
        middle = (low + high) / 2
        low, high = (middle, high) if seen(math.exp(middle))[0].mean() < 0.1 else (low, middle)
    capacity = math.exp((low + high) / 2)
    at, column = seen(capacity)
    below, above = (seen(capacity * math.exp(side * STEP))[0].mean() for side in (-1, 1))
    slope = (above - below) / (2 * STEP)
    error = float(at.std(ddof=1)) / math.sqrt(PARTS) / slope
    floor = seen(capacity / 4)[0].mean()
    return f"{capacity:.4f},{100 * error:.2f},{('ttft', 'tpot')[column]},{slope / 0.09:.1f},{floor:.4f}"


def find_truths(names: list[str]) -> None:
    """Write the true capacities of some scenarios anew, the others as they stand."""
    known = {}
    if TRUTH.exists():
        lines = [line.strip() for line in TRUTH.read_text().splitlines() if not line.startswith("#")][1:]
        known = dict(line.split(",", 1) for line in lines)
    for name in names:
        known[name] = truth(name)
        print(name, known[name], flush=True)
        with TRUTH.open("w") as file:
            file.write("# python -m tests.benchmarks.foreign_services --truth\n")
            file.write("scenario,capacity_qps,standard_error_pct,binding,slope,share_at_a_quarter\n")
            file.writelines(f"{one},{known[one]}\n" for one in SCENARIOS if one in known)


def start(name: str, search: str, chance: np.random.Generator, factor: float = 1.0) -> Start:
    """What a search is told beforehand, each wrong by chance; the expected capacity by `factor` too."""
    guess = truths()[name] * math.exp(chance.uniform(-GUESS_SPREAD, GUESS_SPREAD))
    expected = truths()[name] * factor * math.exp(chance.normal(0, PREDICTION_SD))
    return Start(guess, expected, ttft_s=experiment(name, search).slo.first_token_ms / 1e3)


def compared(name: str, search: str, seed: int, factor: float = 1.0) -> str:
    """What is said of a service and of its twin, whose chance is its own and on which time runs faster."""
    asked, chance = experiment(name, f"search={search}"), np.random.default_rng([seed, 1])
    services = service(name, seed), Faster(service(name, seed + 5000), factor)
    a, b = (
        driver(VirtualTarget(it), asked, start(name, f"search={search}", chance), seed) for it in services
    )
    ratio = PairedReplays(*replayed(a, b))
    return "too little shown" if ratio.lack or not ratio.ratio else ratio.ratio.verdict


def searched(name: str, search: str, seed: int) -> Found:
    """A search of a fresh service; `quick x 1/2` is told half of the truth."""
    kind, _, off = search.partition(" x ")
    asked, chance = experiment(name, f"search={kind}"), np.random.default_rng([seed, 1])
    begin = start(name, f"search={kind}", chance, float(Fraction(off or "1")))
    return search_of(driver(VirtualTarget(service(name, seed)), asked, begin, seed), asked)


def main() -> None:
    """Print the table, or find the truths."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--truth", action="store_true", help="find the true capacities by brute force")
    parser.add_argument("--quantiles", action="store_true", help="how intervals of measured p90s cover")
    parser.add_argument("--compare", action="store_true", help="ratios of identical services")
    parser.add_argument("--faster", type=float, default=1.0, help="how much faster time runs on B")
    parser.add_argument("--replications", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, help="seed of the first replication")
    parser.add_argument("--only", nargs="*", default=list(SCENARIOS), choices=list(SCENARIOS))
    parser.add_argument("--searches", nargs="*", help="such as quick or 'quick x 1/2'; else those of each")
    options = parser.parse_args()
    if options.truth:
        find_truths(options.only)
        return
    if options.quantiles:
        print(f"| service | load | p90 | {' | '.join(f'{s} s' for s in WINDOWS_S)} |\n|{'---|' * 6}")
        for name in options.only:
            for share in (0.8, 1.0):
                print(*quantile_rows(name, share), sep="\n", flush=True)
        return
    if options.compare:
        for name in options.only:
            seeds = range(options.first, options.first + options.replications)
            print(
                name,
                dict(Counter(compared(name, "quick", seed, options.faster) for seed in seeds)),
                flush=True,
            )
        return
    began_s = time.monotonic()
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
    seeds = range(options.first, options.first + options.replications)
    for name in options.only:
        for search in options.searches or SCENARIOS[name].predictions:
            founds = [searched(name, search, seed) for seed in seeds]
            print(row(f"{name} | {search}", truths()[name], founds), flush=True)
    print(f"\n{(time.monotonic() - began_s) / 60:.1f} min, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
