"""The services of known capacity that searches are tried on, and their true capacities."""

import csv
import math
from functools import cache
from pathlib import Path

import numpy as np
import yaml

from conf import Experiment, load
from conf.specs.bounds import GAPS, metric_of
from loadgen.cli.engine_model import parts
from serve_apps.engine_model.engine.kinds import EngineKind
from tests.support.virtual.engines import GapService
from tests.support.virtual.fluid import Fluid
from tests.support.virtual.shared_processor import SharedProcessor
from tests.support.virtual.toy_services import Failing, OneAtATime
from tests.support.virtual.virtual_service import VirtualService
from tests.support.virtual.virtual_target import Service, VirtualTarget

WORDS = yaml.safe_load(Path(__file__).with_name("search_scenarios.yaml").read_text())
METHOD: dict[str, list[str]] = WORDS["method"]
BOUNDS: dict[str, list[str]] = WORDS["bounds"]
EDGES: dict[str, list[str]] = WORDS["edges"]
SCENARIOS = {**METHOD, **BOUNDS, **WORDS["foreign"], **EDGES}
SERVICE_S: dict[str, float] = WORDS["service_s"]
FAILING: dict[str, float] = WORDS["failing"]
DRIFTING: dict[str, list[float]] = WORDS["drifting"]
PACE = ("hardware.efficiency.compute.value=1",)
"""The GPU of `TRUTH`: one that computes at the pace of the fit."""
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
    machine = EngineKind.of(*parts(experiment))
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
