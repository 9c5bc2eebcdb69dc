"""The services of known capacity that searches are tried on: their words and their true capacities.

Knows how a fresh node of each is made; knows no search.
"""

import csv
from functools import cache
from pathlib import Path
from typing import Any

from conf import Experiment, load
from loadgen.virtual_target import Service
from serve_apps.engine_model import VirtualService
from serve_apps.engine_model.fast import FastEngine, Machine
from tests.benchmarks.shared_processor import SharedProcessor

NOISE = ("engine.step_noise_cv=0.04", "engine.async_scheduling=false")
"""The engine whose capacities are in `TRUTH`: steps of an uncertain length, each scheduled after the last."""
SCENARIOS: dict[str, list[str]] = {
    "S1": [*NOISE, "workload=chat_5600_140_varied", "slo.ttft_p90_ms=1900", "slo.tpot_p90_ms=200"],
    "S2": [*NOISE, "workload=chat_5600_140_varied", "slo.ttft_p90_ms=2000", "slo.tpot_p90_ms=90"],
    "S4": [*NOISE, "workload=chat_5600_140", "slo.ttft_p90_ms=2000", "slo.tpot_p90_ms=100"],
    "S5": [
        *NOISE,
        "workload=chat_5600_140",
        "slo.ttft_p90_ms=1500",
        "slo.tpot_p90_ms=100",
        "engine.drift_sd=0.02",
        "engine.stall_every_steps=2000",
    ],
    "PS": ["workload=smoke", "workload.output_tokens.mean=100", "slo.tpot_p90_ms=40"],
}
"""Scenarios of the method, 2.1, with this project's engine: near the knee with both bounds near, far from it
with TPOT alone, fixed lengths, and with 2 % drift of two minutes' memory and stalls of a second. The last is
a server that is none of ours (`shared_processor`)."""
TRUTH = Path(__file__).with_name("search_truth.csv")
FASTER = 1.03
"""How much faster than A the B of a comparison serves everything."""
GUESS_QPS, GUESS_SPREAD = 3.7, 0.35
"""What a search is told beforehand is wrong by up to this (ln) to either side."""


@cache
def experiment(scenario: str, *words: str) -> Experiment:
    """The experiment of a scenario."""
    return load([*SCENARIOS[scenario], *words])


@cache
def truths(column: str = "capacity_qps") -> dict[str, float]:
    """True capacities in QPS, or another column, as the command of the module wrote them."""
    with TRUTH.open() as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {row["scenario"]: float(row[column]) for row in rows}


def service(asked: Experiment, seed: int) -> Service:
    """One fresh node."""
    if asked.workload.name == "smoke":
        return SharedProcessor()
    spec: Any = asked.engine
    machine = Machine.of(spec, asked.model, asked.hardware, asked.layout)
    return VirtualService([FastEngine(machine, spec.max_model_len, seed)])
