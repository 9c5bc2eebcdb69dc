"""One experiment's service at one rate on the virtual clock, always under the same requests.

Knows how much is simulated, what of it counts, and which latencies were seen; the engine model is handed in.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.capacity.kernel import Limit
from analysis.capacity.posterior import LIMITS
from analysis.rows.metrics import tpot_ms, ttft_ms
from analysis.stats.quantiles import BATCHES, MANY_BATCHES, quantile, sectioning
from conf.specs.experiment import Experiment, Slo
from loadgen.predict.spreading import Spreading, spreading
from loadgen.traffic.lengths import Ints
from loadgen.traffic.prefix_sharing import cache_warmup_s
from loadgen.traffic.schedule import NS, PHASES, ArrivalSchedule
from loadgen.traffic.traffic import Traffic

Floats = NDArray[np.float64]


class Simulated(NamedTuple):
    """What became of requests that have all ended, in order of arrival: seconds of the virtual clock.

    `cached_tokens` of each prompt were in the prefix cache. `work` are sums over the engines' steps, of which
    `busy_s` and `kv_token_seconds` (KV in use times how long) are read here; both are nan of an engine that
    had to be simulated block by block, which is slow. `replica` is who served it, where that is told.
    Requests of phase `warmup` fill caches and may have no times (nan).
    """

    first_s: Floats
    last_s: Floats
    cached_tokens: Floats | Ints
    work: Mapping[str, float]
    replica: Ints | None = None


Simulate = Callable[[Experiment, ArrivalSchedule, int, int], Simulated]
"""(experiment, arrivals, nodes, seed); raises ValueError for a request that can never be served."""

PARTS = 10
LEAST_WINDOW_S, LONG_PART_S = 60.0, 600.0
LEAST_REQUESTS = 2000
"""Of fewer, one batch of ten says nothing of a p90."""
LEAST_IN_BATCH = 250
"""Requests of a batch among 40, which hardly depend on the next one's then (our choice; seeds agree)."""
ENOUGH_QPS = 8.0
"""A node that serves more is watched for less time: its requests are as many (our choice)."""
LIVES = 4
"""Lives of a request, at its bounds, before what is seen counts: an engine that begins empty is too fast."""
LONGEST_LIFE_S = 60.0
OVERLOAD = 0.1
"""A service that needs so much longer than its requests came for, and some lives, has no steady state."""
FARTHEST = 3.0
"""ln of p90 over its bound is cut here: how hopeless an overload is depends on how long it was watched."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated at one rate: `parts` runs of `nodes` nodes, each with a window of `window_s`."""

    parts: int
    window_s: float
    nodes: int = 1

    @classmethod
    def of(cls, node_s: float, nodes: int = 1, whole: bool = False) -> "Effort":
        """About `node_s` seconds of a node; a large service is one run, whose requests are many.

        Also with `whole`, as sessions need, whose caches would have to be filled for every part.
        """
        parts = 1 if whole else int(min(max(node_s / nodes / LONG_PART_S, 1), PARTS))
        return cls(parts, max(LEAST_WINDOW_S, node_s / nodes / parts), nodes)


@dataclass(frozen=True, slots=True)
class OperatingPoint:
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
    image_tokens: float
    output_tokens: float
    cached_tokens: float
    e2e_s: float
    work: Mapping[str, float]
    load_s: float
    served_qps: float
    steady: bool
    spreading: Spreading | None = None

    def p90_ms(self, limit: Limit) -> float | None:
        """None where the latency does not apply, as TPOT to answers of one token."""
        return quantile(self._latency(limit), 0.9)

    def interval_ms(self, limit: Limit) -> tuple[float, float] | None:
        """95 % interval of the p90 by Monte Carlo noise alone; None of fewer than 100 requests.

        Ten batches know their own spread to a quarter, which many requests need not put up with.
        """
        latency = self._latency(limit)
        many = len(latency) >= MANY_BATCHES * LEAST_IN_BATCH
        return sectioning(latency, 0.9, MANY_BATCHES if many else BATCHES)

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


class RateSimulator:
    """Runs one experiment's traffic through the engine model at any rate, always the same requests.

    With sessions the caches of `kv_tokens` per node are filled first, and a part of a large fleet stands for
    all of it: so many nodes with their share of the sessions.
    """

    def __init__(
        self, experiment: Experiment, simulate: Simulate, effort: Effort, kv_tokens: float = 0.0
    ) -> None:
        self.experiment, self.effort = experiment, effort
        self._simulate, self._kv_tokens = simulate, kv_tokens
        share = effort.nodes / max(effort.nodes, experiment.cluster.nodes)
        users = max(1, round(share * experiment.workload.sessions)) if experiment.workload.sessions else 0
        self._traffic = Traffic(replace(experiment.workload, sessions=users))
        slo = experiment.slo
        answer_s = experiment.workload.output_tokens.mean * slo.tpot_p90_ms / 1e3
        self._life_s = min(slo.ttft_p90_ms / 1e3 + answer_s, LONGEST_LIFE_S)

    def varied(self, experiment: Experiment) -> "RateSimulator":
        """The same bench with other constants."""
        simulator = RateSimulator(experiment, self._simulate, self.effort, self._kv_tokens)
        simulator._traffic = self._traffic
        return simulator

    def at(self, rate_qps: float) -> OperatingPoint:
        """The service at a rate; the window is longer where requests are rare, shorter where they abound."""
        effort = self.effort
        rare_s = LEAST_REQUESTS / (rate_qps * effort.nodes * effort.parts)
        enough_s = max(LEAST_WINDOW_S, effort.window_s * ENOUGH_QPS / rate_qps)
        window_s = min(max(effort.window_s, min(rare_s, effort.window_s * PARTS)), enough_s)
        runs = [self._run(rate_qps, window_s, part) for part in range(effort.parts)]
        columns = zip(*(run.columns for run in runs), strict=True)
        due, first, last, inputs, images, outputs, cached = (np.concatenate(column) for column in columns)
        load_s = effort.nodes * sum(run.load_s for run in runs)
        _, begin_s, *_, end_s = self._edges_s(rate_qps, window_s)
        offered_s = effort.nodes * effort.parts * (end_s - begin_s)
        lasting_s = LIVES * self._life_s * effort.nodes * effort.parts
        steady = load_s - offered_s <= max(lasting_s, OVERLOAD * offered_s)
        return OperatingPoint(
            rate_qps=rate_qps,
            slo=self.experiment.slo,
            ttft_ms=ttft_ms(due, first),
            tpot_ms=tpot_ms(first, last, outputs),
            input_tokens=_mean(inputs),
            image_tokens=_mean(images),
            output_tokens=_mean(outputs),
            cached_tokens=_mean(cached),
            e2e_s=_mean(last - due),
            work={name: sum(run.work[name] for run in runs) for name in runs[0].work},
            load_s=load_s,
            served_qps=rate_qps if steady else rate_qps * offered_s / load_s,
            steady=steady,
            spreading=runs[0].spreading,
        )

    def _edges_s(self, rate_qps: float, window_s: float) -> tuple[float, ...]:
        """Where the fill, the load, the window and what follows it begin, and where that ends."""
        nodes = self.experiment.cluster.nodes
        begin_s = cache_warmup_s(self.experiment.workload, rate_qps, nodes, self._kv_tokens)
        warm_s = begin_s + LIVES * self._life_s
        return 0.0, begin_s, warm_s, warm_s + window_s, warm_s + window_s + self._life_s

    def _run(self, rate_qps: float, window_s: float, part: int) -> "_Run":
        """One run; load goes on around its window.

        Before, until the service is no longer empty, and after, as long as a request of the window may be in
        flight.
        """
        edges_s = self._edges_s(rate_qps, window_s)
        ns = [round(edge * NS) for edge in edges_s]
        phases = ("warmup", "transition", "window", "bridge")
        bounds = dict(zip(phases, zip(ns[:-1], ns[1:], strict=True), strict=True))
        nodes, seed = self.effort.nodes, self.experiment.seed
        arrivals = self._traffic.draw(rate_qps * nodes, bounds, dwell=part, first_seq=0, seed=seed)
        engines = nodes * self.experiment.layout.replicas_per_node
        seen = self._simulate(self.experiment, arrivals, nodes, seed + part * engines)
        inside = arrivals.phase == PHASES.index("window")
        times = (arrivals.due_ns / NS, seen.first_s, seen.last_s)
        images = np.zeros(len(arrivals)) if arrivals.image_tokens is None else arrivals.image_tokens
        tokens = (arrivals.input_tokens, images, arrivals.output_tokens, seen.cached_tokens)
        return _Run(
            [column[inside].astype(np.float64) for column in (*times, *tokens)],
            seen.work,
            float(np.nanmax(seen.last_s, initial=edges_s[1])) - edges_s[1],
            spreading(arrivals, inside, seen.last_s, seen.replica, engines),
        )


class _Run(NamedTuple):
    """What became of the requests in a window, and how long load lasted.

    `columns`: due, first, last (s), input, image, output, cached tokens.
    """

    columns: list[Floats]
    work: Mapping[str, float]
    load_s: float
    spreading: Spreading | None


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan
