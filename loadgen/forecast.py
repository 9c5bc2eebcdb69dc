"""What an engine model serves at a rate, and at which rate its bounds are just kept: by direct simulation.

The same requests arrive at every rate, only faster (common random numbers), so that a few runs find the rate
at which a p90 meets its bound. The engine model is handed in; knows nothing of its constants.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.capacity import LIMITS
from analysis.metrics import tpot_ms, ttft_ms
from analysis.quantiles import quantile, sectioning
from analysis.root import Limit
from conf.schema import Experiment, Slo
from loadgen.arrivals import NS, PHASES, ArrivalSchedule, Traffic
from loadgen.crossing import Crossing, crossing
from loadgen.lengths import Ints

Floats = NDArray[np.float64]


class Simulated(NamedTuple):
    """What became of requests that have all ended, in order of arrival: seconds of the virtual clock.

    `cached_tokens` of each prompt were in the prefix cache. `work` are sums over the engines' steps, of which
    `busy_s` and `kv_token_seconds` (KV in use times how long) are read here; both are nan of an engine that
    had to be simulated block by block, which is slow.
    """

    first_s: Floats
    last_s: Floats
    cached_tokens: Floats | Ints
    work: Mapping[str, float]


Simulate = Callable[[Experiment, ArrivalSchedule, int, int], Simulated]
"""(experiment, arrivals, nodes, seed); raises ValueError for a request that can never be served."""

PARTS = 10
LEAST_WINDOW_S, LONG_PART_S = 60.0, 600.0
LEAST_REQUESTS = 2000
"""Of fewer, one batch of ten says nothing of a p90."""
ENOUGH_QPS = 8.0
"""A node that serves more is watched for less time: its requests are as many (our choice)."""
LIVES = 4
"""Lives of a request, at its bounds, before what is seen counts: an engine that begins empty is too fast."""
LONGEST_LIFE_S = 60.0
OVERLOAD = 0.1
"""A service that needs so much longer than its requests came for, and some lives, has no steady state."""
MANY_NODES = 8
"""A pooled service of more gains little by pooling: uncertainty is sampled on so many (our choice)."""
QUICK_S = 1200.0
"""Seconds of a node that one rough run simulates: the constants move an answer far more than its noise."""
SLOW_S, SLOW_QUICK_S = 3600.0, 600.0
"""What is simulated at most, and in a rough run, of an engine that is simulated block by block."""
SLOWLY = "this engine is simulated block by block: slower, on less virtual time and with fewer draws"
ROUGH, FINE = 0.004, 0.002
"""Tolerances of ln rate."""
SLOPE = 2.0
"""How fast ln p90 grows with ln rate near the bound, as a first guess."""
FARTHEST = 3.0
"""ln of p90 over its bound is cut here: how hopeless an overload is depends on how long it was watched."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated at one rate: `parts` runs of `nodes` nodes, each with a window of `window_s`."""

    parts: int
    window_s: float
    nodes: int = 1

    @classmethod
    def of(cls, node_s: float, nodes: int = 1) -> "Effort":
        """About `node_s` seconds of a node; a large service is one run, whose requests are many."""
        parts = int(min(max(node_s / nodes / LONG_PART_S, 1), PARTS))
        return cls(parts, max(LEAST_WINDOW_S, node_s / nodes / parts), nodes)


@dataclass(frozen=True, slots=True)
class Point:
    """What was seen at one rate (QPS per node): latencies in order of arrival, and means over requests.

    `e2e_s` is the mean life of a request. `work` are sums over all runs, `load_s` how long those lasted: node
    seconds, with the load around the window. `served_qps` is the rate at which requests were served, below
    the one they came at if `steady` is false: the queue grew for as long as they came.
    """

    rate_qps: float
    slo: Slo
    ttft_ms: Floats
    tpot_ms: Floats
    input_tokens: float
    output_tokens: float
    cached_tokens: float
    e2e_s: float
    work: Mapping[str, float]
    load_s: float
    served_qps: float
    steady: bool

    def p90_ms(self, limit: Limit) -> float | None:
        """None where the latency does not apply, as TPOT to answers of one token."""
        return quantile(self._latency(limit), 0.9)

    def interval_ms(self, limit: Limit) -> tuple[float, float] | None:
        """95 % interval of the p90 by Monte Carlo noise alone; None of fewer than 100 requests."""
        return sectioning(self._latency(limit), 0.9)

    def excess(self, limit: Limit) -> float:
        """ln of p90 over its bound; far below where the limit does not apply."""
        p90 = self.p90_ms(limit)
        if not p90:
            return -FARTHEST
        return min(max(math.log(p90 / self.bound_ms(limit)), -FARTHEST), FARTHEST)

    def bound_ms(self, limit: Limit) -> float:
        bound: float = getattr(self.slo, f"{limit}_p90_ms")
        return bound

    @property
    def slow(self) -> bool:
        """Whether the engine was simulated block by block."""
        return math.isnan(self.work["busy_s"])

    @property
    def binding(self) -> Limit:
        """The limit nearest to its bound, or farthest beyond."""
        return max(LIMITS, key=self.excess)

    def _latency(self, limit: Limit) -> Floats:
        return self.ttft_ms if limit == "ttft" else self.tpot_ms


class Bench:
    """Runs one experiment's traffic through the engine model at any rate, always the same requests."""

    def __init__(self, experiment: Experiment, simulate: Simulate, effort: Effort) -> None:
        self.experiment, self.effort = experiment, effort
        self._simulate = simulate
        self._traffic = Traffic(experiment.workload)
        slo = experiment.slo
        answer_s = experiment.workload.output_tokens.mean * slo.tpot_p90_ms / 1e3
        self._life_s = min(slo.ttft_p90_ms / 1e3 + answer_s, LONGEST_LIFE_S)

    def varied(self, experiment: Experiment) -> "Bench":
        """The same bench with other constants."""
        return Bench(experiment, self._simulate, self.effort)

    def at(self, rate_qps: float) -> Point:
        """The service at a rate; the window is longer where requests are rare, shorter where they abound."""
        effort = self.effort
        rare_s = LEAST_REQUESTS / (rate_qps * effort.nodes * effort.parts)
        enough_s = max(LEAST_WINDOW_S, effort.window_s * ENOUGH_QPS / rate_qps)
        window_s = min(max(effort.window_s, min(rare_s, effort.window_s * PARTS)), enough_s)
        runs = [self._run(rate_qps, window_s, part) for part in range(effort.parts)]
        columns = zip(*(columns for columns, _, _ in runs), strict=True)
        due, first, last, inputs, outputs, cached = (np.concatenate(column) for column in columns)
        load_s = effort.nodes * sum(ended_s for _, _, ended_s in runs)
        offered_s = effort.nodes * effort.parts * self._edges_s(window_s)[-1]
        lasting_s = LIVES * self._life_s * effort.nodes * effort.parts
        steady = load_s - offered_s <= max(lasting_s, OVERLOAD * offered_s)
        return Point(
            rate_qps=rate_qps,
            slo=self.experiment.slo,
            ttft_ms=ttft_ms(due, first),
            tpot_ms=tpot_ms(first, last, outputs),
            input_tokens=_mean(inputs),
            output_tokens=_mean(outputs),
            cached_tokens=_mean(cached),
            e2e_s=_mean(last - due),
            work={name: sum(work[name] for _, work, _ in runs) for name in runs[0][1]},
            load_s=load_s,
            served_qps=rate_qps if steady else rate_qps * offered_s / load_s,
            steady=steady,
        )

    def _edges_s(self, window_s: float) -> tuple[float, float, float, float]:
        """Where the load, the window and what follows it begin, and where that ends."""
        warm_s = LIVES * self._life_s
        return 0.0, warm_s, warm_s + window_s, warm_s + window_s + self._life_s

    def _run(
        self, rate_qps: float, window_s: float, part: int
    ) -> tuple[list[Floats], Mapping[str, float], float]:
        """Due, first, last (s), input, output, cached tokens of requests due in a window; work; the end (s).

        Load goes on around it: before, until the service is no longer empty, and after, as long as a request
        of the window may be in flight.
        """
        ns = [round(edge * NS) for edge in self._edges_s(window_s)]
        phases = ("transition", "window", "bridge")
        bounds = dict(zip(phases, zip(ns[:-1], ns[1:], strict=True), strict=True))
        nodes, seed = self.effort.nodes, self.experiment.seed
        arrivals = self._traffic.draw(rate_qps * nodes, bounds, dwell=part, first_seq=0, seed=seed)
        engines = nodes * self.experiment.layout.replicas_per_node
        seen = self._simulate(self.experiment, arrivals, nodes, seed + part * engines)
        inside = arrivals.phase == PHASES.index("window")
        times = (arrivals.due_ns / NS, seen.first_s, seen.last_s)
        tokens = (arrivals.input_tokens, arrivals.output_tokens, seen.cached_tokens)
        return (
            [column[inside].astype(np.float64) for column in (*times, *tokens)],
            seen.work,
            float(seen.last_s.max(initial=0.0)),
        )


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan


@dataclass(frozen=True, slots=True)
class Solution:
    """The rate at which a bench just keeps its bounds, and what was seen nearest to it."""

    crossing: Crossing
    point: Point

    @property
    def noise(self) -> float | None:
        """95 % half width of ln rate by Monte Carlo noise; None where it is unknown, as at an open end."""
        limit = self.point.binding
        p90, ends = self.point.p90_ms(limit), self.point.interval_ms(limit)
        if self.crossing.side or p90 is None or ends is None or not math.isfinite(ends[1]):
            return None
        return (ends[1] - ends[0]) / 2 / p90 / self.crossing.slope


def solve(bench: Bench, start_qps: float, slope: float, tolerance: float) -> Solution:
    """The rate between the ends of the search at which a p90 meets its bound."""
    search = bench.experiment.search
    seen: list[Point] = []

    def excess(rate_qps: float) -> float:
        seen.append(bench.at(rate_qps))
        return max(seen[-1].excess(limit) for limit in LIMITS)

    found = crossing(excess, start_qps, (search.lowest_qps, search.highest_qps), slope, tolerance)
    return Solution(found, min(seen, key=lambda point: abs(math.log(point.rate_qps / found.rate_qps))))


@dataclass(frozen=True, slots=True)
class Forecast:
    """The answer of long runs, and that of the short ones that other constants are held against."""

    answer: Solution
    quick: Solution
    bench: Bench


def quiet(_: str) -> None:
    """Says nothing of how the work goes."""


def forecast(
    experiment: Experiment, simulate: Simulate, guess_qps: float, say: Callable[[str], None] = quiet
) -> Forecast:
    """The capacity from `search.budget_s` virtual seconds of a node at each rate; rough runs find the place.

    Where every node has a stream of its own, one node speaks for all: they do not touch each other.
    """
    nodes = 1 if experiment.streams else experiment.cluster.nodes
    if experiment.streams:
        experiment = replace(experiment, cluster=replace(experiment.cluster, nodes=1))
    quick_s = min(QUICK_S, experiment.search.budget_s)
    bench = Bench(experiment, simulate, Effort.of(quick_s, min(nodes, MANY_NODES)))
    quick = solve(bench, guess_qps, SLOPE, ROUGH)
    if quick.crossing.side:
        return Forecast(quick, quick, bench)
    budget_s = experiment.search.budget_s
    if quick.point.slow:
        say(SLOWLY)
        budget_s = min(SLOW_S, budget_s)
        bench = Bench(experiment, simulate, Effort.of(min(SLOW_QUICK_S, budget_s), bench.effort.nodes))
        quick = solve(bench, quick.crossing.rate_qps, quick.crossing.slope, ROUGH)
    whole = Bench(experiment, simulate, Effort.of(budget_s, nodes))
    answer = solve(whole, quick.crossing.rate_qps, quick.crossing.slope, FINE)
    return Forecast(answer, quick, bench)
