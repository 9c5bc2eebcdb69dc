"""True capacities by brute force: hours of load at two rates around each, written to `search_truth.csv`.

Knows a node's latencies at a rate; knows no search.
"""

import math
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from tests.benchmarks._scenarios import FASTER, TRUTH, experiment
from tests.benchmarks._usual_searches import WARM_S, Prober

TRUTH_RATES = {
    "S1": (3.98, 4.08),
    "S2": (3.14, 3.24),
    "S4": (3.32, 3.42),
    "S5": (3.22, 3.32),
    "PS": (10.7, 11.0),
}
TRUTH_PARTS, TRUTH_HOURS = 10, 6.0


def shares(scenario: str, rate_qps: float, part: int) -> list[float]:
    """Shares over TTFT and TPOT in some virtual hours at one rate, and over both bounds times `FASTER`."""
    slo = experiment(scenario).slo
    ttft, tpot = Prober(scenario, 50_000 + part).latencies(rate_qps, TRUTH_HOURS * 3600, WARM_S)
    return [
        float((latency > bound * wider).mean())
        for wider in (1.0, FASTER)
        for latency, bound in ((ttft, slo.ttft_p90_ms), (tpot, slo.tpot_p90_ms))
    ]


def find_truths() -> None:
    """Write the true capacities: where a logit line through the shares over a limit meets 10 %."""
    with ProcessPoolExecutor() as pool, TRUTH.open("w") as file:
        file.write("# python -m tests.benchmarks.search_accuracy --truth\n")
        file.write("scenario,capacity_qps,standard_error_pct,binding,faster_ratio,virtual_hours\n")
        for scenario, rates in TRUTH_RATES.items():
            jobs = {
                rate: [pool.submit(shares, scenario, rate, part) for part in range(TRUTH_PARTS)]
                for rate in rates
            }
            seen = {rate: np.array([job.result() for job in parts]) for rate, parts in jobs.items()}
            roots = {limit: root(seen, column) for column, limit in enumerate(("ttft", "tpot"))}
            limit = min(roots, key=lambda name: roots[name][0])
            capacity, error = roots[limit]
            # Faster by a factor is a wider bound by it, in a time that runs faster by it.
            ratio = FASTER * min(root(seen, 2)[0], root(seen, 3)[0]) / capacity
            hours = len(rates) * TRUTH_PARTS * TRUTH_HOURS
            file.write(f"{scenario},{capacity:.4f},{100 * error:.2f},{limit},{ratio:.5f},{hours:g}\n")
            file.flush()
            print(scenario, roots, {rate: v.mean(axis=0).round(4).tolist() for rate, v in seen.items()})


def root(seen: dict[float, Any], column: int) -> tuple[float, float]:
    """The rate at which the share is 10 %, and the standard error of its ln; inf where it is never near."""
    (low, at_low), (high, at_high) = ((math.log(rate), values[:, column]) for rate, values in seen.items())
    if at_high.mean() < 0.02:
        return math.inf, 0.0
    logit = lambda share: math.log(share / (1 - share))  # noqa: E731
    slope = (logit(at_high.mean()) - logit(at_low.mean())) / (high - low)
    at = low + (logit(0.1) - logit(at_low.mean())) / slope
    spread = math.hypot(at_low.std(ddof=1), at_high.std(ddof=1)) / 2 / math.sqrt(len(at_low))
    return math.exp(at), spread / (0.09 * slope)
