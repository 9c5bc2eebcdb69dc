"""How true the search's answers are: whole searches on the engine model, against its capacity by brute force.

python -m tests.benchmarks.search_accuracy                    a few searches of each kind, some minutes
python -m tests.benchmarks.search_accuracy --replications 200 the table of docs/search_accuracy.md
python -m tests.benchmarks.search_accuracy --truth            the true capacities again (search_truth.csv)

Time is virtual, so the figures are those of the method and not of the machine that computes them.
"""

import argparse
import csv
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from analysis import paired
from analysis.capacity import Capacity
from analysis.pooling import Estimate, pooled
from analysis.quantiles import quantile
from conf import Experiment, load
from loadgen import comparison
from loadgen.arrivals import NS, Traffic
from loadgen.driver import Driver
from loadgen.plan import Plan
from loadgen.search import Start
from loadgen.sweep import sweep
from loadgen.virtual_target import Service, VirtualTarget
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
TRUTH_RATES = {
    "S1": (3.98, 4.08),
    "S2": (3.14, 3.24),
    "S4": (3.32, 3.42),
    "S5": (3.22, 3.32),
    "PS": (10.7, 11.0),
}
TRUTH_PARTS, TRUTH_HOURS = 10, 6.0
FASTER = 1.03
"""How much faster than A the B of a comparison serves everything."""
FAR_RATIOS = {
    "S2": {"1.35": 1.4855, "1.7": 1.9885, "0.75": 0.6572, "0.6": 0.4650},
    "S4": {"1.35": 1.4744, "1.7": 1.9642, "0.75": 0.6708, "0.6": 0.4790},
}
"""The same of a B that is faster by other factors: true ratios by `root` at bounds wider by the factor, of 15
virtual hours at each of two rates (standard error 0.2 %)."""
GUESS_QPS, GUESS_SPREAD = 3.7, 0.35
"""What a search is told beforehand is wrong by up to this (ln) to either side."""
PREDICTION_SD = 0.10
WARM_S = 30.0
MLPERF_CONFIDENCE = 0.01
HEADS = (
    *("scenario", "method", "runs", "minutes", "bias %", "RMSE %"),
    *("cover", "certified over", "half-width %", "open", "windows", "ramp s"),
)


@dataclass(frozen=True, slots=True)
class Found:
    """One search's answer in QPS: what it reports, between which ends, what it would certify, its minutes.

    The estimate of an answer with an open end is nan.
    """

    estimate: float
    low: float
    high: float
    certified: float
    minutes: float
    windows: int = 0
    ramp_s: float = 0.0


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


def searched(scenario: str, seed: int, *words: str) -> Found:
    """Our search, from a guess as good as a planner's."""
    asked = experiment(scenario, *words)
    chance = np.random.default_rng([seed, 1])
    guess = GUESS_QPS * math.exp(chance.uniform(-GUESS_SPREAD, GUESS_SPREAD))
    expected = asked.search.expected_qps
    start = Start(guess, expected or truths()[scenario] * math.exp(chance.normal(0, PREDICTION_SD)))
    return begun(asked, start, seed)


def blind(scenario: str, seed: int, off: float, *words: str) -> Found:
    """Our search without a prediction, the roofline's guess being wrong by the factor `off` and a chance."""
    asked = experiment(scenario, "search.start=ramp", *words)
    chance = np.random.default_rng([seed, 3])
    guess = truths()[scenario] * off * math.exp(chance.uniform(-GUESS_SPREAD, GUESS_SPREAD))
    return begun(asked, Start(guess, ttft_s=asked.slo.ttft_p90_ms / 1e3), seed)


def begun(asked: Experiment, start: Start, seed: int) -> Found:
    """A search of a fresh node."""
    plan = Plan(asked.search, asked.slo, asked.workload, 1, seed, start)
    found = sweep(Driver(VirtualTarget(service(asked, seed)), plan, lambda _, /, **__: None))
    ramp = [outcome.dwell for outcome in found.outcomes if outcome.segment.kind == "ramp"]
    dwells = [outcome.dwell for outcome in found.outcomes if outcome.segment.kind == "dwell"]
    # Up to the first window's transition: what settles after the ramp is its cost too.
    ramp_s = (
        (min([d.start_ns for d in dwells] or [ramp[-1].window_end_ns]) - ramp[0].start_ns) / NS
        if ramp
        else 0.0
    )
    told = answer(found.capacity, found.elapsed_s / 60)
    return replace(told, windows=len(dwells), ramp_s=ramp_s)


def answer(q: Capacity | None, minutes: float) -> Found:
    """What a search came to."""
    if q is None:
        return Found(math.nan, 0.0, math.inf, 0.0, minutes)
    if q.open_above or q.open_below:  # a bound is claimed, and no estimate
        ends = 0.0 if q.open_below else q.low, math.inf if q.open_above else q.high
        return Found(math.nan, *ends, ends[0], minutes)
    return Found(q.qps_per_node, q.low, q.high, q.certified, minutes)


class Faster:
    """A service on which time runs `factor` times as fast."""

    def __init__(self, inner: VirtualService, factor: float = FASTER) -> None:
        self._inner, self._factor = inner, factor

    def submit(self, key: int, at_s: float, *lengths_and_stream: Any) -> None:
        self._inner.submit(key, at_s * self._factor, *lengths_and_stream)

    def retract(self, after_s: float) -> None:
        self._inner.retract(after_s * self._factor)

    def advance(self, until_s: float) -> None:
        self._inner.advance(until_s * self._factor)

    def observe(self) -> list[Any]:
        return [
            seen._replace(
                first_token_s=seen.first_token_s and seen.first_token_s / self._factor,
                last_token_s=seen.last_token_s and seen.last_token_s / self._factor,
            )
            for seen in self._inner.observe()
        ]


def compared(scenario: str, seed: int, factor: float = FASTER) -> Found:
    """The ratio of two services by paired windows: A searched for fifteen minutes, B replays A's windows.

    Where B is far from A both begin at one guess, which says nothing of the ratio.
    """
    far = factor != FASTER
    asked = experiment(scenario, "search=standard", *(["search.start=prediction"] if far else []))
    guess = truths()[scenario] * math.exp(np.random.default_rng([seed, 1]).normal(0, PREDICTION_SD))
    plan = Plan(asked.search, asked.slo, asked.workload, 1, seed, Start(GUESS_QPS, guess if far else None))
    faster = Faster(service(asked, 2 * seed + 1), factor)
    targets = VirtualTarget(service(asked, 2 * seed)), VirtualTarget(faster)
    a, b = (Driver(target, plan, lambda _, /, **__: None) for target in targets)
    sweep(a)
    original = comparison.Original.of_driver(a)
    found = sweep(b, lambda driver: comparison.next_replay(driver, original))
    pairs = comparison.pairs_of(b, original)
    ratio = paired.ratio([pair for pair in pairs if pair.whole], comparison.apart(b, original))
    minutes = (a.elapsed_s() + found.elapsed_s) / 60
    if ratio is None or ratio.open:
        ends = (
            (ratio.low, math.inf)
            if ratio and ratio.open == "above"
            else (0.0, ratio.high if ratio else math.inf)
        )
        return Found(math.nan, *ends, ends[0], minutes)
    return Found(ratio.value, ratio.low, ratio.high, ratio.low, minutes)


def published(scenario: str, seed: int) -> Found:
    """Two deployments of fifteen minutes, the second begun where the first ended, pooled."""
    first = searched(scenario, seed, "search=standard")
    begin = "search.start=prediction", f"search.expected_qps={first.estimate}"
    second = searched(scenario, seed + 500_000, "search=standard", *begin)
    both = pooled([Estimate.of_interval(each.estimate, each.low, each.high) for each in (first, second)])
    minutes = first.minutes + second.minutes
    return Found(both.qps.value, both.qps.low, both.qps.high, both.certified, minutes)


@dataclass(slots=True)
class Prober:
    """Probes as the usual tools make them: Poisson arrivals from idle, judged by the p90s of all answers."""

    scenario: str
    seed: int
    spent_s: float = 0.0
    probes: int = 0

    def latencies(self, rate_qps: float, seconds: float, warm_s: float = 0.0) -> tuple[Any, Any]:
        """TTFT and TPOT in ms of the requests due after `warm_s`, in order of arrival."""
        asked = experiment(self.scenario)
        self.probes += 1
        phases = {
            "transition": (0, int(warm_s * NS)),
            "window": (int(warm_s * NS), int((warm_s + seconds) * NS)),
        }
        plan = Traffic(asked.workload).draw(
            rate_qps, phases, dwell=self.probes, first_seq=0, seed=1000 + self.seed
        )
        node = service(asked, 1000 * self.seed + self.probes)
        due_s = plan.due_ns / NS
        lengths = zip(due_s.tolist(), plan.input_tokens.tolist(), plan.output_tokens.tolist(), strict=True)
        for key, (at_s, inputs, outputs) in enumerate(lengths):
            node.submit(key, at_s, inputs, outputs)
        node.advance(1e9)
        ended = sorted(node.observe(), key=lambda seen: seen.key)
        first = np.array([it.first_token_s for it in ended], dtype=np.float64)
        last = np.array([it.last_token_s for it in ended], dtype=np.float64)
        tokens = np.array([it.tokens for it in ended])
        self.spent_s += float(last.max(initial=0.0))
        counted = due_s >= warm_s
        tpot = (last - first) / np.maximum(tokens - 1, 1)
        return (first - due_s)[counted] * 1e3, tpot[counted] * 1e3

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
    rate = GUESS_QPS / 2 * math.exp(np.random.default_rng([seed, 2]).uniform(-GUESS_SPREAD, GUESS_SPREAD))
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
    rate = GUESS_QPS / 2 * math.exp(np.random.default_rng([seed, 2]).uniform(-GUESS_SPREAD, GUESS_SPREAD))
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


def _method(name: str) -> Callable[[str, int], Found]:
    match name.split():
        case ["maxqps", "quick,", "guess", "x", off]:
            return lambda scenario, seed: blind(scenario, seed, float(Fraction(off)), "search=quick")
        case ["maxqps", "quick"]:
            return lambda scenario, seed: searched(scenario, seed, "search=quick")
        case ["maxqps", "2", "x", *_]:
            return published
        case ["maxqps", "compare"]:
            return compared
        case ["maxqps", "compare", "x", factor]:
            return lambda scenario, seed: compared(scenario, seed, float(factor))
        case ["maxqps", minutes, "min"]:
            budget = f"search.budget_s={60 * float(minutes):g}"
            return lambda scenario, seed: searched(scenario, seed, "search=standard", budget)
        case ["bisection", seconds, "s"]:
            return lambda scenario, seed: bisection(scenario, seed, float(seconds))
        case ["isotonic", _, "s"]:
            return isotonic
        case _:
            return mlperf


BLIND = ("maxqps quick, guess x 1", "maxqps quick, guess x 1/3", "maxqps quick, guess x 3")
"""Searches that nobody places: a ramp begins from a guess that is wrong by so much."""
FAR = tuple(f"maxqps compare x {factor}" for factor in FAR_RATIOS["S2"])
"""Comparisons of services that differ much; in S2 and S4 alone the true ratio is known."""
NAMES = (
    "maxqps quick",
    *BLIND,
    "maxqps 15 min",
    "maxqps 30 min",
    "maxqps 2 x 15 min",
    "maxqps compare",
    *FAR,
    "bisection 60 s",
    "bisection 120 s",
    "bisection 300 s",
    "isotonic 60 s",
    "MLPerf 600 s",
)


def one(name: str, scenario: str, seed: int) -> Found:
    """One replication."""
    return _method(name)(scenario, seed)


def line(name: str, scenario: str, found: list[Found]) -> str:
    """What a method found in a scenario, as a row of a table."""
    truth = (
        FAR_RATIOS[scenario][name.split()[-1]]
        if name in FAR
        else truths("faster_ratio" if name.endswith("compare") else "capacity_qps")[scenario]
    )
    return row(f"{scenario} | {name}", truth, found)


def row(title: str, truth: float, found: list[Found]) -> str:
    """Bias, RMSE, cover, violations and cost of many answers to one question, as a row of a table."""
    known = [each for each in found if math.isfinite(each.estimate)]
    error = np.array([math.log(each.estimate / truth) for each in known])
    covers = np.mean([each.low <= truth <= each.high for each in found if each.low or each.high < math.inf])
    over = np.mean([each.certified > truth for each in found])
    half = np.median([math.log(each.high / max(each.low, 1e-9)) / 2 for each in known])
    minutes = np.mean([each.minutes for each in found])
    spread = math.sqrt(float((error**2).mean()))
    windows, ramp_s = (np.mean([getattr(each, name) for each in found]) for name in ("windows", "ramp_s"))
    return (
        f"| {title} | {len(found)} | {minutes:.1f} | {100 * error.mean():+.2f} ± "
        f"{100 * error.std() / math.sqrt(len(known)):.2f} | {100 * spread:.2f} | {covers:.3f} | {over:.3f} | "
        f"{100 * half:.1f} | {len(found) - len(known)} | {windows:.1f} | {ramp_s:.0f} |"
    )


def table(names: list[str], scenarios: list[str], replications: int, first: int) -> Iterator[str]:
    """The table, row by row."""
    yield f"| {' | '.join(HEADS)} |"
    yield f"|{'---|' * len(HEADS)}"
    with ProcessPoolExecutor() as pool:
        for scenario in scenarios:
            for name in (each for each in names if each not in FAR or scenario in FAR_RATIOS):
                seeds = range(first, first + replications)
                jobs = [pool.submit(one, name, scenario, seed) for seed in seeds]
                yield line(name, scenario, [job.result() for job in jobs])


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


def main() -> None:
    """Print the table, or find the truths."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--truth", action="store_true", help="find the true capacities by brute force")
    parser.add_argument("--replications", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, help="seed of the first replication")
    parser.add_argument("--methods", nargs="*", default=list(NAMES), choices=NAMES)
    parser.add_argument("--scenarios", nargs="*", default=list(SCENARIOS), choices=list(SCENARIOS))
    asked = parser.parse_args()
    if asked.truth:
        find_truths()
        return
    began_s = time.monotonic()
    for text in table(asked.methods, asked.scenarios, asked.replications, asked.first):
        print(text, flush=True)
    load_now = os.getloadavg()[0]
    print(f"\n{(time.monotonic() - began_s) / 60:.1f} min on {os.cpu_count()} cores, load {load_now:.1f}")


if __name__ == "__main__":
    main()
