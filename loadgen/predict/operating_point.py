"""One experiment's service at one rate on the virtual clock, always under the same requests."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.rows import routing_spread
from analysis.rows.metrics import tpot_ms, ttft_ms
from analysis.stats.quantiles import BATCHES, MANY_BATCHES, quantile, sectioning
from conf.specs.bounds import JOINT, PER_REQUEST, Limit, metric_of, quantile_of
from conf.specs.experiment import Experiment, Slo
from loadgen.traffic.prefix_sharing import blocked, cache_warmup_s
from loadgen.traffic.schedule import NS, PHASES, ArrivalSchedule, Floats, Ints
from loadgen.traffic.traffic import Traffic


@dataclass(frozen=True, slots=True)
class RoutingOutcome:
    """Session and replica of every request of a window; replicas are numbered through the whole fleet.

    `replicas` of them were simulated: number k is played by k mod `replicas`. `late` turns were due before
    the previous turn had ended.
    """

    session: Ints
    replica: Ints
    late: NDArray[np.bool_]
    replicas: int

    @property
    def replicas_per_session(self) -> float | None:
        return routing_spread.replicas_per_session(self._rows(self.replica))

    @property
    def max_over_mean_share(self) -> float | None:
        return routing_spread.max_over_mean_share(self._rows(self.replica % self.replicas), self.replicas)

    @property
    def blocked_share(self) -> float:
        return float(self.late.mean()) if len(self.late) else 0.0

    def _rows(self, replica: Ints) -> pa.Table:
        return pa.table({"session_id": self.session, "replica_id": replica})


class Simulated(NamedTuple):
    """Times of requests that have all ended, in order of arrival, in seconds of the virtual clock.

    `cached_tokens` of each prompt were in the prefix cache. `work` holds sums over the engines' steps.
    Requests of phase `warmup` may have no times (nan). In a closed loop they are `sent_s` as others end.
    `own_itl_s` is a quantile of each request's gaps between tokens, `gaps` are those of all in order of
    arrival and how many each request has, where a bound asks for it; `queue_s` is its time in the scheduler's
    queue, None where that is not known.
    """

    sent_s: Floats
    first_s: Floats
    last_s: Floats
    cached_tokens: Floats | Ints
    work: Mapping[str, float]
    replica: Ints | None = None
    own_itl_s: Floats | None = None
    gaps: tuple[Floats, Ints] | None = None
    queue_s: Floats | None = None


Simulate = Callable[[Experiment, ArrivalSchedule, int, int], Simulated]
"""(experiment, arrivals, nodes, seed); raises ValueError for a request that can never be served."""

PARTS = 10
LEAST_WINDOW_S, LONG_PART_S = 60.0, 600.0
LEAST_REQUESTS = 2000
"""Fewest requests for a p90 from ten batches."""
LEAST_IN_BATCH = 250
"""Requests per batch from which 40 batches hardly depend on each other (our choice; seeds agree)."""
ENOUGH_QPS = 8.0
"""A node above this rate is simulated for less time, with as many requests (our choice)."""
LIVES = 4
"""Lives of a request, at its bounds, before the window: an engine that begins empty is too fast."""
LONGEST_LIFE_S = 60.0
ALONE_S = 600
"""Seconds between requests that meet no other; no answer alone lasts as long."""
OVERLOAD = 0.1
"""A service whose requests take this share longer than they came for, beyond some lives, is overloaded."""
FARTHEST = 3.0
"""Cut of ln(p90 / bound): beyond it an overloaded p90 depends on the simulated time alone."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Simulated time at one rate: `parts` runs of `nodes` nodes, each with a window of `window_s`."""

    parts: int
    window_s: float
    nodes: int = 1

    @classmethod
    def from_budget(cls, node_s: float, nodes: int = 1, whole: bool = False) -> "Effort":
        """About `node_s` node seconds; in one run if `whole` (for sessions), and for a large service."""
        parts = 1 if whole else int(min(max(node_s / nodes / LONG_PART_S, 1), PARTS))
        return cls(parts, max(LEAST_WINDOW_S, node_s / nodes / parts), nodes)


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Latencies at one rate (QPS per node) by their metric, in order of arrival, and means over requests.

    Pooled gaps are those of all requests, one request's after the other's: batches of them are of requests.
    `e2e_s` is the mean life of a request. `work` holds sums over all runs and `load_s` their node seconds,
    with the load around the window. `served_qps` is below the arrival rate if `steady` is false: the queue
    grew as long as requests came.
    """

    rate_qps: float
    slo: Slo
    latencies_ms: Mapping[str, Floats]
    requests: int
    input_tokens: float
    image_tokens: float
    output_tokens: float
    cached_tokens: float
    e2e_s: float
    work: Mapping[str, float]
    load_s: float
    served_qps: float
    steady: bool
    routing_outcome: RoutingOutcome | None = None

    def quantile_ms(self, limit: Limit) -> float | None:
        """The limited quantile, None if the latency does not apply, as TPOT to answers of one token.

        Of a joint bound it is no time but that of a request's largest latency over its bound.
        """
        return quantile(self.latency(limit), quantile_of(limit))

    def interval_ms(self, limit: Limit) -> tuple[float, float] | None:
        """95 % interval of the quantile by Monte Carlo noise alone; None for too few requests."""
        latency, q = self.latency(limit), quantile_of(limit)
        many = len(latency) >= MANY_BATCHES * LEAST_IN_BATCH
        return sectioning(latency, q, MANY_BATCHES if many else BATCHES)

    def excess(self, limit: Limit) -> float:
        """ln of the quantile over its bound, within `FARTHEST`; the lowest value if it does not apply."""
        quantile_ms = self.quantile_ms(limit)
        if not quantile_ms:
            return -FARTHEST
        return min(max(math.log(quantile_ms / self.bound_ms(limit)), -FARTHEST), FARTHEST)

    @property
    def worst(self) -> float:
        """The largest `excess` of all bounds."""
        return self.excess(self.binding)

    def bound_ms(self, limit: Limit) -> float:
        """The bound in ms; of a joint one 1, since it limits a ratio."""
        return 1.0 if metric_of(limit) == JOINT else self.slo.bound_ms(limit)

    @property
    def binding(self) -> Limit:
        """The limit nearest to its bound, or farthest beyond it."""
        return max(self.slo.limits, key=self.excess)

    def latency(self, limit: Limit) -> Floats:
        """The limited latency per request (`limited`)."""
        return limited(self.latencies_ms, self.slo, limit)


def limited(latencies_ms: Mapping[str, Floats], slo: Slo, limit: Limit) -> Floats:
    """The limited latency in ms per request; of a joint bound the largest over its bound, else 0."""
    if metric_of(limit) != JOINT:
        return latencies_ms[metric_of(limit)]
    own = [each for each in slo.limits if metric_of(each) in PER_REQUEST]
    worst = np.fmax.reduce([latencies_ms[metric_of(each)] / slo.bound_ms(each) for each in own])
    return np.asarray(np.nan_to_num(worst, posinf=np.inf))


class RateSimulator:
    """Runs one experiment's traffic through the engine model at any rate, always the same requests.

    With sessions the caches of `kv_tokens` per node are warmed first. Some nodes stand for a large fleet.
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
        answer_s = slo.tokens_s(experiment.workload.output_tokens.mean)
        self._life_s = min(slo.first_token_ms / 1e3 + answer_s, LONGEST_LIFE_S)

    def varied(self, experiment: Experiment) -> "RateSimulator":
        """The same simulator with other constants."""
        simulator = RateSimulator(experiment, self._simulate, self.effort, self._kv_tokens)
        simulator._traffic = self._traffic
        return simulator

    def alone(self) -> OperatingPoint:
        """The service of requests that each come when the one before has long ended."""
        effort = self.effort
        return self.at(LEAST_REQUESTS / (effort.window_s * effort.nodes * effort.parts), apart=True)

    def at(self, rate_qps: float, apart: bool = False) -> OperatingPoint:
        """The service at a rate; the window is longer at low rates and shorter at high ones.

        Requests that come `apart` are those of the rate and meet no other.
        """
        effort = self.effort
        rare_s = LEAST_REQUESTS / (rate_qps * effort.nodes * effort.parts)
        enough_s = max(LEAST_WINDOW_S, effort.window_s * ENOUGH_QPS / rate_qps)
        window_s = min(max(effort.window_s, min(rare_s, effort.window_s * PARTS)), enough_s)
        runs = [self._run(rate_qps, window_s, part, apart) for part in range(effort.parts)]
        columns = zip(*(run.columns for run in runs), strict=True)
        due, first, last, itl, queue, inputs, images, outputs, cached = map(np.concatenate, columns)
        _, begin_s, *_, end_s = self._edges_s(rate_qps, window_s)
        offered_s = effort.nodes * effort.parts * (end_s - begin_s)
        # By chance no request comes at all at a low rate: the nodes are idle for as long.
        load_s = effort.nodes * sum(run.load_s for run in runs) or offered_s
        lasting_s = LIVES * self._life_s * effort.nodes * effort.parts
        steady = load_s - offered_s <= max(lasting_s, OVERLOAD * offered_s)
        return OperatingPoint(
            rate_qps=rate_qps,
            slo=self.experiment.slo,
            latencies_ms={
                "ttft": ttft_ms(due, first),
                "tpot": tpot_ms(first, last, outputs),
                "e2e": (last - due) * 1e3,
                "itl": itl * 1e3,
                "itl_pooled": np.concatenate([run.gaps_s for run in runs]) * 1e3,
                "queue": queue * 1e3,
            },
            requests=len(due),
            input_tokens=_mean(inputs),
            image_tokens=_mean(images),
            output_tokens=_mean(outputs),
            cached_tokens=_mean(cached),
            e2e_s=_mean(last - due),
            work={name: sum(run.work[name] for run in runs) for name in runs[0].work},
            load_s=load_s,
            served_qps=rate_qps if steady else rate_qps * offered_s / load_s,
            steady=steady,
            routing_outcome=runs[0].routing_outcome,
        )

    def _edges_s(self, rate_qps: float, window_s: float) -> tuple[float, ...]:
        """Begin of cache warm-up, load, window and bridge, and the bridge's end."""
        nodes = self.experiment.cluster.nodes
        begin_s = cache_warmup_s(self.experiment.workload, rate_qps, nodes, self._kv_tokens)
        warm_s = begin_s + LIVES * self._life_s
        return 0.0, begin_s, warm_s, warm_s + window_s, warm_s + window_s + self._life_s

    def _run(self, rate_qps: float, window_s: float, part: int, apart: bool) -> "_Run":
        """One run: its load fills the service before the window, and lasts until its requests have ended."""
        edges_s = self._edges_s(rate_qps, window_s)
        ns = [round(edge * NS) for edge in edges_s]
        phases = ("warmup", "transition", "window", "bridge")
        bounds = dict(zip(phases, zip(ns[:-1], ns[1:], strict=True), strict=True))
        nodes, seed = self.effort.nodes, self.experiment.seed
        arrivals = self._traffic.draw(rate_qps * nodes, bounds, window_index=part, first_seq=0, seed=seed)
        if apart:
            arrivals = replace(arrivals, due_ns=np.arange(len(arrivals), dtype=np.int64) * ALONE_S * NS)
        engines = nodes * self.experiment.layout.replicas_per_node
        served = self._simulate(self.experiment, arrivals, nodes, seed + part * engines)
        inside = arrivals.phase == PHASES.index("window")
        unknown = np.full(len(arrivals), np.nan)
        some_s = (unknown if time_s is None else time_s for time_s in (served.own_itl_s, served.queue_s))
        times = (arrivals.due_ns / NS, served.first_s, served.last_s, *some_s)
        images = np.zeros(len(arrivals)) if arrivals.image_tokens is None else arrivals.image_tokens
        tokens = (arrivals.input_tokens, images, arrivals.output_tokens, served.cached_tokens)
        outcome = None
        if arrivals.session is not None and served.replica is not None:
            late = blocked(arrivals, served.last_s)[inside]
            outcome = RoutingOutcome(arrivals.session[inside], served.replica[inside], late, engines)
        return _Run(
            [column[inside].astype(np.float64) for column in (*times, *tokens)],
            served.work,
            float(np.nanmax(served.last_s, initial=edges_s[1])) - edges_s[1],
            outcome,
            np.zeros(0) if served.gaps is None else served.gaps[0][np.repeat(inside, served.gaps[1])],
        )


class _Run(NamedTuple):
    """Requests of a window, and the duration of the load.

    `columns`: due, first, last, own ITL, queue (s), input, image, output, cached tokens; `gaps_s` of all.
    """

    columns: list[Floats]
    work: Mapping[str, float]
    load_s: float
    routing_outcome: RoutingOutcome | None
    gaps_s: Floats


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan
