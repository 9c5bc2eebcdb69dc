"""Bounds that no rate keeps: a request misses them that meets no other, or that meets a single prompt.

The engine model is handed in.
"""

import math
from dataclasses import replace

import numpy as np

from analysis.stats.quantiles import quantile
from conf.specs.bounds import GAPS, JOINT, Limit, Slo, allowed_over, metric_of, quantile_of
from conf.specs.experiment import Experiment
from loadgen.predict.operating_point import OperatingPoint, RateSimulator, Simulate
from loadgen.traffic.schedule import NS, PHASES, ArrivalSchedule

LONGEST_GAP = "itl_p99"
NEARLY_ALL = 1 - 1e-9
"""The quantile of a request's own gaps that is its longest gap."""
MET_BY_CHANCE = 1.0
"""Requests in flight per engine below which most meet no other, so that a bound is kept by chance (our
choice)."""


def missed_alone(simulator: RateSimulator, limit: Limit) -> str:
    """The reason why no rate keeps a bound, as even requests alone miss it; empty if these keep it."""
    experiment = simulator.experiment
    if experiment.workload.has_sessions or metric_of(limit) == JOINT:
        return ""
    alone_ms, bound_ms = simulator.alone().quantile_ms(limit), experiment.slo.bound_ms(limit)
    if alone_ms is None or alone_ms <= bound_ms:
        return ""
    return f"{_no_rate(experiment, limit)}: requests that meet no other have {_beyond(alone_ms, bound_ms)}"


def missed_beside_prompt(point: OperatingPoint, experiment: Experiment, simulate: Simulate) -> str:
    """The reason why no rate at which requests meet keeps a bound on gaps; empty if such rates may keep it.

    The bounds are just kept at the `point`. Where a bound on gaps limits it, and prompts that are computed
    beside answers break that bound, it is kept only while few requests meet, and a quantile of gaps jumps
    with the rate.
    """
    limit = point.binding
    engines = experiment.layout.replicas_per_node
    if metric_of(limit) not in GAPS or point.rate_qps * point.e2e_s / engines >= MET_BY_CHANCE:
        return ""
    gap_ms = gap_beside_prompt_ms(experiment, simulate)
    bound_ms = experiment.slo.bound_ms(limit)
    if gap_ms <= bound_ms or _where_requests_meet_ms(limit, experiment, gap_ms) <= bound_ms:
        return ""
    return (
        f"{_no_rate(experiment, limit)} where requests meet: one prompt beside an answer makes a gap of "
        f"{_beyond(gap_ms, bound_ms)}; it is kept below {point.rate_qps:.2g} QPS per node, where few do"
    )


def _where_requests_meet_ms(limit: Limit, experiment: Experiment, gap_ms: float) -> float:
    """The least that the quantile of a bound on gaps is with one request in flight per engine.

    Each answer then meets a prompt in the mean, and every prompt makes a gap of `gap_ms`; other gaps count 0.
    """
    gaps = max(2, round(experiment.workload.output_tokens.mean)) - 1
    if metric_of(limit) == "itl_pooled":
        return gap_ms if 1 / gaps > allowed_over(limit) else 0.0
    long = min(prompts_met(quantile_of(limit)), gaps)
    own_ms = np.repeat([0.0, gap_ms], [gaps - long, long])
    return quantile(own_ms, experiment.slo.itl_within) or 0.0


def prompts_met(share: float) -> int:
    """Prompts that this share of answers meets at most, where an answer meets one in the mean (Poisson).

    >>> [prompts_met(share) for share in (0.5, 0.9, 0.99)]
    [1, 2, 4]
    """
    met, likely = 0, math.exp(-1)
    within = likely
    while within < share:
        met += 1
        likely /= met
        within += likely
    return met


def gap_beside_prompt_ms(experiment: Experiment, simulate: Simulate) -> float:
    """Longest gap of a mean answer, half of which has come when a mean prompt reaches the same engine."""
    workload = experiment.workload
    one = replace(
        experiment,
        cluster=replace(experiment.cluster, nodes=1),
        layout=replace(experiment.layout, replicas_per_node=1),
        slo=Slo(at_most_ms={LONGEST_GAP: 1.0}, itl_within=NEARLY_ALL),
    )
    tokens = round(workload.prompt_tokens), max(2, round(workload.output_tokens.mean))
    shared = round(workload.prefix_hit * tokens[0])
    alone = simulate(one, _due([0.0], tokens, shared), 1, experiment.seed)
    half_s = float(alone.first_s[0] + alone.last_s[0]) / 2
    pair = simulate(one, _due([0.0, half_s], tokens, shared), 1, experiment.seed)
    assert pair.own_itl_s is not None
    return 1e3 * float(pair.own_itl_s[0])


def _due(at_s: list[float], tokens: tuple[int, int], shared: int) -> ArrivalSchedule:
    """Requests of equal lengths at these seconds."""
    inputs, outputs, shares, phase = (
        np.full(len(at_s), value, dtype=np.int64) for value in (*tokens, shared, PHASES.index("window"))
    )
    due_ns = np.array([round(second * NS) for second in at_s], dtype=np.int64)
    return ArrivalSchedule(0, np.arange(len(at_s)), due_ns, phase, inputs, outputs, shares)


def _no_rate(experiment: Experiment, limit: Limit) -> str:
    return f"no rate keeps {experiment.slo.words(limit)}"


def _beyond(found_ms: float, bound_ms: float) -> str:
    return f"{found_ms:.4g} ms, {100 * (found_ms / bound_ms - 1):.0f} % over it"
