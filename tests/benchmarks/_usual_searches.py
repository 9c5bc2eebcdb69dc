"""Searches as other tools make them, on the same scenarios: bisection, a monotone fit, early stopping."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.stats.quantiles import quantile
from loadgen.traffic.schedule import NS
from loadgen.traffic.traffic import Traffic
from tests.support.search.scenarios import FAILING, GUESS_SPREAD, experiment, guess_qps, node
from tests.support.search.searches import Found

WARM_S = 30.0
MLPERF_CONFIDENCE = 0.01


@dataclass(slots=True)
class Prober:
    """Probes as the usual tools make them: Poisson arrivals from idle, judged by the p90s of all answers."""

    scenario: str
    seed: int
    spent_s: float = 0.0
    probes: int = 0

    def latencies(
        self, rate_qps: float, seconds: float, warm_s: float = 0.0, after_s: float = 0.0
    ) -> tuple[Any, Any]:
        """TTFT and TPOT in ms of the requests due in `seconds` from `warm_s`, in order of arrival.

        The load goes on for `after_s`; a failure is infinitely late.
        """
        asked = experiment(self.scenario)
        self.probes += 1
        phases = {
            "transition": (0, int(warm_s * NS)),
            "window": (int(warm_s * NS), int((warm_s + seconds) * NS)),
            "bridge": (int((warm_s + seconds) * NS), int((warm_s + seconds + after_s) * NS)),
        }
        plan = Traffic(asked.workload).draw(
            rate_qps, phases, window_index=self.probes, first_seq=0, seed=1000 + self.seed
        )
        fresh = node(self.scenario, 1000 * self.seed + self.probes)
        due_s = plan.due_ns / NS
        lengths = zip(due_s.tolist(), plan.input_tokens.tolist(), plan.output_tokens.tolist(), strict=True)
        for key, (at_s, inputs, outputs) in enumerate(lengths):
            fresh.submit(key, at_s, inputs, outputs)
        fresh.advance(1e9)
        ended = sorted(fresh.observe(), key=lambda seen: seen.key)
        first = np.array([it.first_token_s for it in ended], dtype=np.float64)
        last = np.array([it.last_token_s for it in ended], dtype=np.float64)
        tokens = np.array([it.tokens for it in ended])
        self.spent_s += float(last.max(initial=0.0))
        counted = (due_s >= warm_s) & (due_s < warm_s + seconds)
        ttft, tpot = first - due_s, (last - first) / np.maximum(tokens - 1, 1)
        failed = np.random.default_rng([self.seed, 6]).random(len(ttft)) < FAILING.get(self.scenario, 0.0)
        ttft[failed] = tpot[failed] = math.inf
        return ttft[counted] * 1e3, tpot[counted] * 1e3

    def excess(self, rate_qps: float, seconds: float, warm_s: float = 0.0) -> float:
        """ln of the worse p90 over its bound: positive is over."""
        slo = experiment(self.scenario).slo
        ttft, tpot = (quantile(each, 0.9) for each in self.latencies(rate_qps, seconds, warm_s))
        if ttft is None or tpot is None:
            return -math.inf
        return max(math.log(ttft / slo.ttft_p90_ms), math.log(tpot / slo.tpot_p90_ms))

    def sure(self, rate_qps: float, seconds: float) -> bool:
        """MLPerf's early stopping: as many over each bound are too few for chance at 10 %, if independent."""
        slo = experiment(self.scenario).slo
        pairs = zip(self.latencies(rate_qps, seconds), (slo.ttft_p90_ms, slo.tpot_p90_ms), strict=True)
        counted = [(int((each > bound).sum()), len(each)) for each, bound in pairs]
        return all(binomial_cdf(over, n, 0.1) <= MLPERF_CONFIDENCE for over, n in counted)


def bisected(scenario: str, seed: int, passes: Callable[[Prober, float], bool], tolerance: float) -> Found:
    """Doubling from a random start until one fails, then halving: the highest rate that passed."""
    prober = Prober(scenario, seed)
    rate = (
        guess_qps(scenario)
        / 2
        * math.exp(np.random.default_rng([seed, 2]).uniform(-GUESS_SPREAD, GUESS_SPREAD))
    )
    low, high = 0.0, math.inf
    while high == math.inf or low == 0.0 or high / low > 1 + tolerance:
        if passes(prober, rate):
            low = rate
        else:
            high = rate
        rate = low * 2 if high == math.inf else high / 2 if low == 0.0 else math.sqrt(low * high)
    return Found(low, low, high, low, prober.spent_s / 60)


def bisection(scenario: str, seed: int, seconds: float) -> Found:
    """One probe decides, to 3 %."""
    return bisected(scenario, seed, lambda prober, rate: prober.excess(rate, seconds) <= 0, 0.03)


def mlperf(scenario: str, seed: int) -> Found:
    """Ten minutes, and valid only with early stopping's margin, to 2 %."""
    return bisected(scenario, seed, lambda prober, rate: prober.sure(rate, 600.0), 0.02)


def isotonic(scenario: str, seed: int, seconds: float = 60.0, more: int = 6) -> Found:
    """Doubling, then probes of a minute where a monotone fit of ln(p90 / bound) crosses zero."""
    prober = Prober(scenario, seed)
    rate = (
        guess_qps(scenario)
        / 2
        * math.exp(np.random.default_rng([seed, 2]).uniform(-GUESS_SPREAD, GUESS_SPREAD))
    )
    seen: list[tuple[float, float]] = []
    while not (seen and max(excess for _, excess in seen) > 0 >= min(excess for _, excess in seen)):
        seen.append((rate, prober.excess(rate, seconds, WARM_S)))
        rate = rate * 2 if seen[-1][1] <= 0 else rate / 2
    for _ in range(more):
        rate, _, _ = crossing(seen)
        seen.append((rate, prober.excess(rate, seconds, WARM_S)))
    rate, low, high = crossing(seen)
    return Found(rate, low, high, rate, prober.spent_s / 60)


def crossing(seen: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Where a rising step function through (rate, excess) crosses zero, and the rates beside it."""
    rates, excess = np.array(sorted(seen)).T
    fitted = pool_adjacent(np.clip(excess, -3.0, 3.0))
    over = int(np.argmax(fitted > 0)) if (fitted > 0).any() else len(rates) - 1
    under = max(over - 1, 0)
    rise = fitted[over] - fitted[under]
    part = -fitted[under] / rise if rise > 0 else 0.5
    at = math.exp(math.log(rates[under]) + min(max(part, 0.0), 1.0) * math.log(rates[over] / rates[under]))
    return at, float(rates[under]), float(rates[over])


def pool_adjacent(values: Any) -> Any:
    """Isotonic regression by pooling adjacent violators."""
    blocks: list[tuple[float, int]] = []
    for value in values.tolist():
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, n), (b, m) = blocks[-2:]
            blocks[-2:] = [((a * n + b * m) / (n + m), n + m)]
    return np.concatenate([np.full(count, value) for value, count in blocks])


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(at most k of n)."""
    logs = [
        math.lgamma(n + 1)
        - math.lgamma(i + 1)
        - math.lgamma(n - i + 1)
        + i * math.log(p)
        + (n - i) * math.log1p(-p)
        for i in range(k + 1)
    ]
    return math.fsum(map(math.exp, logs))
