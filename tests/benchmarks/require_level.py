"""How often a required rate passes and fails at its capacity and 3 % beside it, over all its looks.

python -m tests.benchmarks.require_level               the table, some minutes
python -m tests.benchmarks.require_level --runs 200    as many runs of each row

Windows of 3.3 to 500 QPS are drawn (`fluid`), with a capacity that drifts and a memory of two minutes;
those of S2 are offered to the engine model by the real driver (`search_accuracy`). Time is virtual.
"""

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from analysis.capacity.window_counts import NS, WindowCounts
from loadgen.drive.driver import Driver
from loadgen.drive.plan import LoadPlan
from loadgen.drive.sweep import REQUIRED_S, TRANSITION_S, WINDOW_S, require
from loadgen.search import acceptance
from loadgen.search.window_plan import Start, WindowPlan
from tests.support.search.scenarios import experiment, service, truths
from tests.support.virtual.fluid import Fluid
from tests.support.virtual.virtual_target import VirtualTarget

RATES_QPS, DRIFTS = (3.3, 50.0, 500.0), (0.0, 0.01, 0.02)
BESIDE = (0.97, 1.0, 1.03)
"""Rates over the capacity."""
HEADS = ("service", "rate over capacity", "runs", "passed", "failed", "undecided", "mean s")

Told = tuple[str, float]
"""How a run ended, and after how many seconds."""


def drawn(root_qps: float, drift_sd: float, rate_qps: float, seed: int) -> Told:
    """One required rate of drawn windows, whose latencies nobody knows."""
    fluid = Fluid(root_qps, drift_sd=drift_sd, seed=seed)
    window_s, transition_s = WINDOW_S, TRANSITION_S
    whole_s = acceptance.windows_s(REQUIRED_S, transition_s, window_s, 1.0)
    windows: list[WindowCounts] = []
    while sum(window.seconds for window in windows) < whole_s:
        step = WindowPlan(len(windows), "window", rate_qps, transition_s, window_s, False, "")
        windows.append(fluid.window(step).counts)
        transition_s = 0.0
        found = acceptance.decide(rate_qps, windows, [], whole_s, behind=False)
        if found.verdict != "undecided":
            break
    return found.verdict, fluid.elapsed_s


def served(scenario: str, rate_qps: float, seed: int) -> Told:
    """One required rate of the engine model, by the real driver."""
    asked = experiment(scenario)
    plan = LoadPlan(asked.search, asked.slo, asked.workload, 1, seed, Start(rate_qps))
    driver = Driver(VirtualTarget(service(asked, seed)), plan, lambda _, /, **__: None)
    found = require(driver, rate_qps, REQUIRED_S)
    return found.analysis.verdict, driver.windows.outcomes[-1].counts.window_end_ns / NS


def row(title: str, beside: float, told: list[Told]) -> str:
    """What became of so many runs."""
    ends = [verdict for verdict, _ in told]
    shares = [f"{ends.count(end) / len(ends):.3f}" for end in ("passed", "failed", "undecided")]
    seconds = f"{np.mean([after_s for _, after_s in told]):.0f}"
    return f"| {' | '.join([title, f'{beside:.2f}', str(len(told)), *shares, seconds])} |"


def table(runs: int, first: int, scenarios: list[str]) -> Iterator[str]:
    """The table, row by row."""
    yield f"| {' | '.join(HEADS)} |"
    yield f"|{'---|' * len(HEADS)}"
    for title, capacity_qps, once in _services(scenarios):
        for beside in BESIDE:
            told = [once(beside * capacity_qps, seed) for seed in range(first, first + runs)]
            yield row(title, beside, told)


def _services(scenarios: list[str]) -> Iterator[tuple[str, float, Callable[[float, int], Told]]]:
    for qps in RATES_QPS:
        for drift in DRIFTS:
            capacity_qps = Fluid(qps, drift_sd=drift).capacity_qps()
            yield f"drawn, {qps:g} QPS, drift {drift:.0%}", capacity_qps, partial(drawn, qps, drift)
    for scenario in scenarios:
        yield scenario, truths()[scenario], partial(served, scenario)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument("--scenarios", nargs="*", default=["S2"], help="of search_accuracy")
    asked = parser.parse_args()
    began_s = time.monotonic()
    for text in table(asked.runs, asked.first, asked.scenarios):
        print(text, flush=True)
    print(f"\n{(time.monotonic() - began_s) / 60:.1f} min, load {os.getloadavg()[0]:.1f}")
    known = math.sqrt(0.05 * 0.95 / asked.runs)
    print(f"{asked.runs} runs know a share of .05 to +-{known:.3f}")


if __name__ == "__main__":
    main()
