"""The services of known capacity that searches are tried on: their words and their true capacities."""

import csv
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from conf import Experiment, load
from conf.specs.bounds import GAPS, metric_of
from serve_apps.engine_model.engine.kinds import EngineKind
from tests.support.virtual.engines import GapService
from tests.support.virtual.fluid import Fluid
from tests.support.virtual.shared_processor import SharedProcessor
from tests.support.virtual.toy_services import Failing, OneAtATime
from tests.support.virtual.virtual_service import VirtualService
from tests.support.virtual.virtual_target import Service, VirtualTarget


def answers(tokens: int, tpot_ms: float) -> list[str]:
    """The words of short prompts with answers of so many tokens."""
    return ["workload=smoke", f"workload.output_tokens.mean={tokens}", f"slo.tpot_p90_ms={tpot_ms:g}"]


NOISE = ("engine.step_noise_cv=0.04", "engine.async_scheduling=false")
"""The engine whose capacities are in `TRUTH`: steps of an uncertain length, each scheduled after the last."""
PACE = ("hardware.efficiency.compute.value=1",)
"""The GPU of `TRUTH`: one that computes at the pace of the fit."""
METHOD: dict[str, list[str]] = {
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
}
"""Scenarios of the method, 2.1, with this project's engine: near the knee with both bounds near, far from it
with TPOT alone, fixed lengths, and with 2 % drift of two minutes' memory and stalls of a second."""
ALONE = ("slo.ttft_p90_ms=null", "slo.tpot_p90_ms=null")
BOUNDS: dict[str, list[str]] = {
    "T99": [*NOISE, "workload=chat_5600_140_varied", *ALONE, "slo.ttft_p99_ms=3500"],
    "I99": [*NOISE, "workload=chat_5600_140_varied", *ALONE, "slo.itl_p99_ms=330"],
    "G95": [*NOISE, "workload=chat_5600_140_varied", *ALONE, "slo.itl_pooled_p95_ms=280"],
    "J90": [
        *NOISE,
        "workload=chat_5600_140_varied",
        "slo.ttft_p90_ms=1700",
        "slo.tpot_p90_ms=90",
        "slo.joint=.9",
    ],
}
"""Other bounds than two p90s: p99 TTFT, p99 of ITL (the 99 % quantile of own gaps), p95 of pooled gaps, and a
joint share."""
EDGES: dict[str, list[str]] = {
    **{f"L{tokens}": answers(tokens, tpot_ms=60) for tokens in (1000, 2000, 4000)},
    "L2000v": [
        *answers(2000, tpot_ms=60),
        "workload.output_tokens.kind=lognormal",
        "workload.output_tokens.cv=0.5",
    ],
    "M1": ["workload=smoke", "slo.ttft_p90_ms=8000", "slo.tpot_p90_ms=1000"],
    "M057": ["workload=smoke", "slo.ttft_p90_ms=1950", "slo.tpot_p90_ms=1000"],
    "T20": ["workload=smoke", "slo.ttft_p90_ms=20000", "slo.tpot_p90_ms=1000"],
    "F003": answers(91, tpot_ms=40),
    "P5": answers(100, tpot_ms=40),
    **{f"D{qps}-{drift}": ["search.highest_qps=50000"] for qps in (500, 5000) for drift in (1, 2)},
}
"""Services at the edges of what a search can measure.

L: the shared processor with answers of so many tokens, a minute to four each; v: of lengths that vary.
M1, M057: one request at a time, so that few are seen: one in ten and in two seconds. T20: the same with a
TTFT bound of 20 s, which most steps of a ramp are shorter than. F003: .3 % of all answers fail. P5: nodes
of PS whose capacities differ by 5 %. D: thousands of requests per second and a drift of 1 and 2 % with two
minutes' memory; its windows are drawn and not served.
"""
SCENARIOS = {**METHOD, **BOUNDS, "PS": answers(100, tpot_ms=40), **EDGES}
"""All by name, and their words. PS is a server that is none of ours (`shared_processor`)."""
SERVICE_S = {"M1": 5.0, "M057": 1.0, "T20": 2.0}
"""Seconds that a request keeps a server to itself (our choice)."""
FAILING = {"F003": 0.003}
"""Share of answers that fail at any rate."""
DRIFTING = {f"D{qps}-{drift}": (float(qps), drift / 100) for qps in (500, 5000) for drift in (1, 2)}
"""The rate at which a tenth would be over without drift, and the drift's standard deviation."""
APART, STEEPNESS = 0.05, 2.2
"""sd of ln(capacity) of P5's nodes, and how many percent of capacity one percent of speed makes: 2.26 at 5 %
slower and 2.14 at 5 % faster, by brute force."""
TRUTH = Path(__file__).with_name("search_truth.csv")
FASTER = 1.03
"""How much faster than A the B of a comparison serves everything."""
GUESS_QPS, GUESS_SPREAD = 3.7, 0.35
"""What a search is told beforehand is wrong by up to this (ln) to either side."""


@cache
def experiment(scenario: str, *words: str) -> Experiment:
    """The experiment of a scenario."""
    return load([*PACE, *SCENARIOS[scenario], *words])


@cache
def truths(column: str = "capacity_qps") -> dict[str, float]:
    """True capacities in QPS, or another column, as brute force wrote them; P5's is its median node's."""
    with TRUTH.open() as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        known = {row["scenario"]: float(row[column]) for row in rows}
    return known | {"P5": known["PS"]}


def guess_qps(scenario: str) -> float:
    """What a planner would guess of a scenario's capacity, without its error."""
    return GUESS_QPS if scenario in METHOD or scenario in BOUNDS else truths()[scenario]


def service(experiment: Experiment, seed: int, factor: float = 1.0) -> Service:
    """One fresh node of our engine, whose gaps are told as of one that is `factor` times as fast."""
    spec: Any = experiment.engine
    machine = EngineKind.of(spec, experiment.model, experiment.hardware, experiment.layout)
    if any(metric_of(limit) in GAPS for limit in experiment.slo.limits):
        most_s = (experiment.slo.strictest_ms("itl_pooled") or math.inf) / 1e3
        return GapService(machine, seed, experiment.slo.itl_within, most_s, factor)
    return VirtualService(machine, seed=seed)


def node(scenario: str, seed: int) -> Service:
    """One fresh node of a scenario's own service; raises ValueError where windows are drawn."""
    if scenario in DRIFTING:
        raise ValueError(f"{scenario} has no node to probe: its windows are drawn")
    if scenario in METHOD or scenario in BOUNDS:
        return service(experiment(scenario), seed)
    if scenario in SERVICE_S:
        return OneAtATime(SERVICE_S[scenario])
    if scenario == "P5":
        apart = APART * np.random.default_rng([seed, 5]).standard_normal()
        return SharedProcessor(speed=math.exp(apart / STEEPNESS))
    return SharedProcessor()


def target(scenario: str, seed: int) -> VirtualTarget:
    """A fresh node behind the seam that a driver loads."""
    fresh = node(scenario, seed)
    return Failing(fresh, FAILING[scenario], seed) if scenario in FAILING else VirtualTarget(fresh)


def drawn(scenario: str, seed: int) -> Fluid:
    """A fresh service of a scenario whose windows are drawn."""
    root_qps, drift_sd = DRIFTING[scenario]
    return Fluid(root_qps=root_qps, drift_sd=drift_sd, seed=seed)
