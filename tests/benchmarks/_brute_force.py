"""True capacities by brute force: hours of load at two rates around each, written to `search_truth.csv`."""

import math
from collections.abc import Collection, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from conf.specs.bounds import Limit, allowed_over
from loadgen.cli import engine_model
from loadgen.predict.operating_point import Effort, RateSimulator
from loadgen.traffic.schedule import NS
from loadgen.traffic.traffic import Traffic
from tests.support.search.scenarios import (
    DRIFTING,
    EDGES,
    FAILING,
    FASTER,
    SCENARIOS,
    SERVICE_S,
    TRUTH,
    drawn,
    experiment,
    node,
)
from tests.support.virtual.toy_services import waits_longer

TRUTH_RATES = {
    "S1": (3.98, 4.08),
    "S2": (3.14, 3.24),
    "S4": (3.32, 3.42),
    "S5": (3.22, 3.32),
    "PS": (10.7, 11.0),
    "L1000": (1.53, 1.56),
    "L2000": (0.768, 0.780),
    "L4000": (0.387, 0.394),
    "L2000v": (0.766, 0.782),
    "F003": (11.8, 12.0),
}
BOUND_RATES = {"T99": (3.95, 4.11), "I99": (3.05, 3.20), "G95": (2.9, 3.08), "J90": (3.12, 3.24)}
"""The same of scenarios with other bounds than two p90s."""
WIDER_RATES = {"I99": (3.6, 3.9), "G95": (2.95, 3.13)}
"""The same with each bound times `FASTER`, where the ratio to an engine that is so much faster is asked."""
TRUTH_PARTS, BOUND_PARTS, TRUTH_HOURS = 10, 80, 6.0
EDGE_REQUESTS, EDGE_WARM_S = 100_000, 3600.0
"""Requests of a part where they cost little, and seconds before and after it: many of the longest answers."""


WARM_S = 30.0


def latencies(
    scenario: str, seed: int, rate_qps: float, seconds: float, warm_s: float, after_s: float = 0.0
) -> tuple[Any, Any]:
    """TTFT and TPOT in ms of the requests due in `seconds` from `warm_s`, in order of arrival.

    The load goes on for `after_s`; a failure is infinitely late.
    """
    asked = experiment(scenario)
    phases = {
        "transition": (0, int(warm_s * NS)),
        "window": (int(warm_s * NS), int((warm_s + seconds) * NS)),
        "bridge": (int((warm_s + seconds) * NS), int((warm_s + seconds + after_s) * NS)),
    }
    plan = Traffic(asked.workload).draw(rate_qps, phases, window_index=1, first_seq=0, seed=1000 + seed)
    fresh = node(scenario, 1000 * seed + 1)
    due_s = plan.due_ns / NS
    lengths = zip(due_s.tolist(), plan.input_tokens.tolist(), plan.output_tokens.tolist(), strict=True)
    for key, (at_s, inputs, outputs) in enumerate(lengths):
        fresh.submit(key, at_s, inputs, outputs)
    fresh.advance(1e9)
    ended = sorted(fresh.observe(), key=lambda seen: seen.key)
    first = np.array([it.first_token_s for it in ended], dtype=np.float64)
    last = np.array([it.last_token_s for it in ended], dtype=np.float64)
    tokens = np.array([it.tokens for it in ended])
    counted = (due_s >= warm_s) & (due_s < warm_s + seconds)
    ttft, tpot = first - due_s, (last - first) / np.maximum(tokens - 1, 1)
    failed = np.random.default_rng([seed, 6]).random(len(ttft)) < FAILING.get(scenario, 0.0)
    ttft[failed] = tpot[failed] = math.inf
    return ttft[counted] * 1e3, tpot[counted] * 1e3


def shares(scenario: str, rate_qps: float, part: int) -> list[float]:
    """Shares over TTFT and TPOT in some virtual hours at one rate, and over both bounds times `FASTER`."""
    slo, seed = experiment(scenario).slo, 50_000 + part
    if scenario in EDGES:
        ttft, tpot = latencies(scenario, seed, rate_qps, EDGE_REQUESTS / rate_qps, EDGE_WARM_S, EDGE_WARM_S)
    else:
        ttft, tpot = latencies(scenario, seed, rate_qps, TRUTH_HOURS * 3600, WARM_S)
    return [
        float((latency > bound * wider).mean())
        for wider in (1.0, FASTER)
        for latency, bound in ((ttft, slo.ttft_p90_ms), (tpot, slo.tpot_p90_ms))
    ]


def bounded(scenario: str, rate_qps: float, wider: float, part: int) -> list[float]:
    """The share over each bound times `wider`, of all requests of some virtual hours at one rate."""
    asked = replace(experiment(scenario), seed=50_000 + part)
    effort = Effort(1, TRUTH_HOURS * 3600)
    point = RateSimulator(asked, engine_model.simulate, effort).at(rate_qps)
    return [
        float((point.latency(limit) > wider * point.bound_ms(limit)).mean()) for limit in asked.slo.limits
    ]


def of_bounds(scenario: str, pool: Executor) -> str:
    """A line of the table: the lowest rate at which a bound's share over it is the one it allows."""
    limit, capacity, error = _first_bound(scenario, BOUND_RATES[scenario], 1.0, pool)
    ratio, rates = math.nan, WIDER_RATES.get(scenario)
    if rates:
        ratio = FASTER * _first_bound(scenario, rates, FASTER, pool)[1] / capacity
    return f"{capacity:.4f},{100 * error:.2f},{limit},{ratio:.5f},{BOUND_PARTS * TRUTH_HOURS * 2:.0f}"


def _first_bound(
    scenario: str, rates: tuple[float, float], wider: float, pool: Executor
) -> tuple[Limit, float, float]:
    """The bound, times `wider`, that is just kept at the lowest rate, that rate, and the error of its ln."""
    jobs = {
        rate: [pool.submit(bounded, scenario, rate, wider, part) for part in range(BOUND_PARTS)]
        for rate in rates
    }
    seen = {rate: np.array([job.result() for job in parts]) for rate, parts in jobs.items()}
    limits = experiment(scenario).slo.limits
    roots = {limit: root(seen, column, allowed_over(limit)) for column, limit in enumerate(limits)}
    print(scenario, roots, {rate: v.mean(axis=0).round(4).tolist() for rate, v in seen.items()}, flush=True)
    limit = min(roots, key=lambda name: roots[name][0])
    return limit, *roots[limit]


def find_truths(scenarios: Collection[str]) -> None:
    """Write the true capacities of some scenarios anew, the others as they stand."""
    result = dict(written())
    with ProcessPoolExecutor() as pool:
        for scenario in scenarios:
            if scenario in DRIFTING:
                result[scenario] = f"{drawn(scenario, 0).capacity_qps():.4f},0.01,ttft,nan,0"
            elif scenario in SERVICE_S:
                result[scenario] = f"{exact(scenario):.5f},0,ttft,nan,0"
            elif scenario in BOUND_RATES:
                result[scenario] = of_bounds(scenario, pool)
            elif scenario in TRUTH_RATES:
                result[scenario] = brute_force(scenario, pool)
    with TRUTH.open("w") as file:
        file.write("# python -m tests.benchmarks.search_accuracy --truth\n")
        file.write("scenario,capacity_qps,standard_error_pct,binding,faster_ratio,virtual_hours\n")
        file.writelines(f"{name},{result[name]}\n" for name in SCENARIOS if name in result)


def written() -> Iterator[tuple[str, str]]:
    """Each scenario of the table of truths, and the rest of its line."""
    with TRUTH.open() as file:
        for line in [line for line in file if not line.startswith("#")][1:]:
            name, rest = line.strip().split(",", 1)
            yield name, rest


def brute_force(scenario: str, pool: Executor) -> str:
    """A line of the table: where a logit line through the shares over a limit meets 10 %."""
    jobs = {
        rate: [pool.submit(shares, scenario, rate, part) for part in range(TRUTH_PARTS)]
        for rate in TRUTH_RATES[scenario]
    }
    seen = {rate: np.array([job.result() for job in parts]) for rate, parts in jobs.items()}
    roots = {limit: root(seen, column) for column, limit in enumerate(("ttft", "tpot"))}
    limit = min(roots, key=lambda name: roots[name][0])
    capacity, error = roots[limit]
    # Faster by a factor is a wider bound by it, in a time that runs faster by it.
    ratio = FASTER * min(root(seen, 2)[0], root(seen, 3)[0]) / capacity
    each_h = [EDGE_REQUESTS / rate / 3600 if scenario in EDGES else TRUTH_HOURS for rate in seen]
    print(scenario, roots, {rate: v.mean(axis=0).round(4).tolist() for rate, v in seen.items()}, flush=True)
    return f"{capacity:.4f},{100 * error:.2f},{limit},{ratio:.5f},{TRUTH_PARTS * sum(each_h):.0f}"


def exact(scenario: str) -> float:
    """The capacity of a server of one request at a time, whose waits are known in closed form."""
    asked, service_s = experiment(scenario), SERVICE_S[scenario]
    wait_s = asked.slo.ttft_p90_ms / 1e3 - service_s / asked.workload.output_tokens.mean
    low, high = 0.0, 1 / service_s
    while high / max(low, 1e-9) > 1 + 1e-9:
        middle = (low + high) / 2
        low, high = (low, middle) if waits_longer(middle, service_s, wait_s) > 0.1 else (middle, high)
    return low


def root(seen: dict[float, Any], column: int, allowed: float = 0.1) -> tuple[float, float]:
    """The rate at which the share is `allowed`, and the standard error of its ln; inf if it is never near.

    A part has the same chances at both rates, so that its two shares err together.
    """
    (low, at_low), (high, at_high) = ((math.log(rate), values[:, column]) for rate, values in seen.items())
    if at_high.mean() < allowed / 5 or not at_low.mean():
        return math.inf, 0.0
    logit = lambda share: math.log(share / (1 - share))  # noqa: E731
    slope = (logit(at_high.mean()) - logit(at_low.mean())) / (high - low)
    at = low + (logit(allowed) - logit(at_low.mean())) / slope
    spread = (at_low + at_high).std(ddof=1) / 2 / math.sqrt(len(at_low))
    return math.exp(at), float(spread) / (allowed * (1 - allowed) * slope)
