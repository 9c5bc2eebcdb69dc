"""How true a search with chat users is: whole searches over a prefix cache, against brute force.

python -m tests.benchmarks.conversation_accuracy                     a few searches of each kind, a minute
python -m tests.benchmarks.conversation_accuracy --replications 40   the table of docs/search_accuracy.md
python -m tests.benchmarks.conversation_accuracy --truth             the true capacities again

As `search_accuracy`, with users who stay for longer than a search, a cache that is filled before it, and a
guess that is off by 10 %. Left out: no turn waits for the answer before it, as next to none would.
"""

import argparse
import math
import os
import time
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa

from conf import Experiment
from conf.specs.experiment import Workload
from loadgen.cli import engine_model
from loadgen.cli.words import experiment_of as asked
from loadgen.drive.driver import Driver
from loadgen.drive.load_feed import LoadPlan
from loadgen.fleet.target import Observation
from loadgen.traffic.prefix_sharing import shared_prefixes
from loadgen.traffic.schedule import NS, PHASES, ArrivalSchedule, planned
from loadgen.traffic.traffic import Traffic
from serve_apps.engine_model import EngineKind
from serve_apps.engine_model.service.prefixes import session_pieces
from tests.benchmarks._brute_force import root
from tests.benchmarks.search_accuracy import HEADS, row
from tests.support.search.searches import Found, answer, swept
from tests.support.virtual.virtual_service import SessionPrompt, VirtualService
from tests.support.virtual.virtual_target import VirtualTarget

SCENARIOS = {
    "C1": ("workload=character",),
    "C2": ("workload=character", "layout=dp1_tp4", "hardware.fp8_flop_per_s=4e14"),
}
"""The default service, whose KV cache is a little too small for its 1500 users; and a slower one of 480, with
room for all."""
TRUTHS = {"C1": 27.300, "C2": 8.655}
"""Capacities in QPS as `--truth` finds them, with standard errors of 0.1 %: at 27.3 and 27.6 QPS 10.0
and 19.5 % are over the TPOT bound, at 8.45 and 8.75 QPS 5.2 and 13.3 %."""
TRUTH_RATES = {"C1": (27.3, 27.6), "C2": (8.45, 8.75)}
TRUTH_PARTS, TRUTH_FILL_S, TRUTH_S = 400, 900.0, 1200.0
SEARCHES = ("quick", "standard")
OFF = 0.10
"""The guess that places a search is too high or too low by so much (ln), in turn."""


class Chats(VirtualTarget):
    """A node of one replica that knows what prompts share, and tells what of each it had in its cache."""

    def __init__(self, kind: EngineKind, workload: Workload) -> None:
        self._chats, self._workload = VirtualService(kind), workload
        self._number: dict[int, int] = {}
        super().__init__(self._chats)

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        progress = super().run(schedule, until_ns)
        numbers = [self._number[due_ns] for due_ns in progress.ended["due_ns"].to_pylist()]
        cached = self._chats.service.arrays.requests["cached"][numbers]
        place = progress.ended.column_names.index("cached_tokens")
        return replace(
            progress, ended=progress.ended.set_column(place, "cached_tokens", pa.array(cached, pa.int32()))
        )

    def _submit(self, schedule: ArrivalSchedule) -> None:
        names, ends, _ = session_pieces(*(shared_prefixes(schedule, self._workload) or ()))
        for i, plan in enumerate(planned(schedule)):
            self._planned[plan.seq] = plan
            self._number[plan.due_ns] = self._chats.service.count
            pieces = list(zip(names[:, i].tolist(), ends[:, i].tolist(), strict=True))
            lengths = plan.input_tokens, plan.output_tokens
            self._chats.submit(plan.seq, plan.due_ns / NS, *lengths, begins=SessionPrompt(pieces=pieces))


@cache
def experiment(scenario: str, search: str = "standard") -> Experiment:
    """The experiment of a scenario; of a search that a guess places."""
    return asked("sweep", [*SCENARIOS[scenario], f"search={search}", "search.start=prediction"], None)


def searched(scenario: str, search: str, seed: int) -> Found:
    """A search from a guess that is wrong by `OFF`."""
    one = experiment(scenario, search)
    guessed = replace(one.search, expected_qps=TRUTHS[scenario] * math.exp(OFF * (-1) ** seed))
    start, _ = engine_model.start(replace(one, search=guessed), "sweep", lambda _, /, **__: None)
    plan = LoadPlan(one.search, one.slo, one.workload, 1, seed, start)
    target = Chats(EngineKind.of(*engine_model.parts(one)), one.workload)
    result = swept(Driver(target, plan, lambda _, /, **__: None))
    return answer(result.capacity, result.elapsed_s / 60)


def shares(scenario: str, rate_qps: float, seed: int) -> list[float]:
    """Shares over TTFT and TPOT of twenty minutes, after a fill, of the users that a run begins with."""
    one, slo = experiment(scenario), experiment(scenario).slo
    edges = [round(at_s * NS) for at_s in (0, TRUTH_FILL_S, TRUTH_FILL_S + TRUTH_S)]
    bounds = {"warmup": (edges[0], edges[1]), "window": (edges[1], edges[2])}
    drawn = Traffic(one.workload).draw(rate_qps, bounds, window_index=0, first_seq=0, seed=50_000 + seed)
    seen, due_s = engine_model.simulate(one, drawn, 1, seed), drawn.due_ns / NS
    inside = drawn.phase == PHASES.index("window")
    ttft_ms = (seen.first_s - due_s)[inside] * 1e3
    tpot_ms = ((seen.last_s - seen.first_s) / np.maximum(drawn.output_tokens - 1, 1))[inside] * 1e3
    return [float((ttft_ms > slo.ttft_p90_ms).mean()), float((tpot_ms > slo.tpot_p90_ms).mean())]


def find_truths() -> None:
    """Print the capacities: where a logit line through the shares over a limit meets 10 %."""
    for scenario, rates in TRUTH_RATES.items():
        parts = range(TRUTH_PARTS)
        seen = {rate: np.array([shares(scenario, rate, part) for part in parts]) for rate in rates}
        capacity, error = min(root(seen, column) for column in (0, 1))
        means = {rate: values.mean(axis=0).round(4).tolist() for rate, values in seen.items()}
        print(
            f"{scenario}: {capacity:.4f} QPS, standard error {100 * error:.2f} %; shares {means}", flush=True
        )


def main() -> None:
    """Print the table, or find the truths; in one process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--truth", action="store_true", help="find the true capacities by brute force")
    parser.add_argument("--replications", type=int, default=4)
    parser.add_argument("--searches", nargs="*", default=list(SEARCHES), choices=SEARCHES)
    parser.add_argument("--scenarios", nargs="*", default=list(SCENARIOS), choices=list(SCENARIOS))
    chosen = parser.parse_args()
    if chosen.truth:
        find_truths()
        return
    began_s = time.monotonic()
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
    for scenario in chosen.scenarios:
        for search in chosen.searches:
            result = [searched(scenario, search, seed) for seed in range(chosen.replications)]
            print(row(f"{scenario} | maxqps {search}", TRUTHS[scenario], result), flush=True)
    print(f"\n{(time.monotonic() - began_s) / 60:.1f} min, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
