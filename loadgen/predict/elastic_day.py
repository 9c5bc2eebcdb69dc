"""A day of a planned service on fleets that differ in how they follow the demand, on the virtual clock.

Engines are handed in.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from analysis.autoscaling.elastic import (
    CROWD,
    EITHER,
    FAILED,
    FLEETS,
    LOSS,
    MINUTES,
    NODE_HOURS,
    SPAN_S,
    DayQuestion,
    ElasticDay,
    FleetRun,
    outcome,
)
from analysis.rows.metrics import tpot_ms, ttft_ms
from conf import ConfigError, Experiment
from conf.specs.bounds import GAPS, JOINT, Limit, allowed_over, metric_of
from loadgen.traffic.lengths import Ints
from loadgen.traffic.processes import Floats
from loadgen.traffic.schedule import NS
from loadgen.traffic.traffic import Traffic

HOURS, HOUR_S, MINUTE_S = 24, 3600.0, 60.0
DAY_S = HOURS * HOUR_S
RAMP_S = 600.0
"""Time around each full hour in which the rate goes from one mean to the next (our choice)."""
CROWD_FACTOR, CROWD_S, RISE_S = 3.0, 600.0, 60.0
"""A crowd: so many times the rate, for so long, reached within a minute (our choice)."""
INTO_HOUR_S = 1200.0
"""Begin of the crowd and of the loss within their hours: the ramp is over by then (our choice)."""
SHOWN_S = 1800.0
"""Time from the crowd's begin, and from the loss, whose requests are counted for them (our choice)."""
MOST_REQUESTS = 1_000_000
"""Requests of a day above which fewer nodes stand for the fleet (our choice)."""
FEWEST_NODES = 4
"""Fewest nodes that stand for a larger fleet: of fewer, one lost node is most of the service (our choice)."""
DAYS = 3
"""Days that differ by their arrivals alone (our choice)."""

Bools = NDArray[np.bool_]


class FleetTimes(Protocol):
    """Times of requests (nan of one that failed), and from each `at_s` on the nodes in use; in seconds."""

    @property
    def first_s(self) -> Floats: ...
    @property
    def last_s(self) -> Floats: ...
    @property
    def at_s(self) -> Floats: ...
    @property
    def nodes(self) -> Floats: ...


def hours_by_rate(asked: DayQuestion) -> list[int]:
    """The hours from the quietest to the busiest: the crowd comes in the middle one, the loss in the last."""
    return sorted(range(HOURS), key=lambda hour: asked.hourly_qps[hour])


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """The fleet as it is simulated: `share` of the plan, whose rates and nodes are smaller by that.

    A new engine serves `scale_up_s` after it was asked for; one node is lost at `lost_s`.
    """

    nodes: int
    share: float
    hourly_nodes: tuple[int, ...]
    scale_up_s: float
    lost_s: float

    @classmethod
    def of(cls, asked: DayQuestion) -> "SimulatedFleet":
        """All nodes of the plan, or as many as serve `MOST_REQUESTS`."""
        share = min(1.0, MOST_REQUESTS / (sum(asked.hourly_qps) * HOUR_S))
        nodes = min(asked.nodes, max(FEWEST_NODES, math.floor(asked.nodes * share)))
        share = nodes / asked.nodes
        hourly = tuple(max(1, math.ceil(count * share)) for count in asked.hourly_nodes)
        lost_s = hours_by_rate(asked)[-1] * HOUR_S + INTO_HOUR_S
        return cls(nodes, share, hourly, asked.scale_up_s, lost_s)

    def scheduled_nodes(self, now_s: float) -> int:
        """Nodes to have asked for: those of this hour, and of the one in which a new engine would serve.

        An hour's nodes serve when the ramp to it begins.
        """
        hours = {self._hour(now_s), self._hour(now_s + self.scale_up_s + RAMP_S / 2)}
        return max(self.hourly_nodes[hour] for hour in hours)

    def _hour(self, at_s: float) -> int:
        return int(at_s // HOUR_S) % HOURS


ServeDay = Callable[[str, SimulatedFleet, Floats, Sequence[Ints], int], FleetTimes]
"""(name of the fleet, fleet, due times in s, prompt, output and shared tokens, seed)."""


@dataclass(frozen=True, slots=True)
class DayRates:
    """The rate over a day in QPS: hourly means, linear ramps between them, a crowd from `crowd_from_s` on."""

    hourly_qps: tuple[float, ...]
    crowd_from_s: float

    def at(self, at_s: Floats) -> Floats:
        """The rate at each time in seconds from midnight; the day repeats."""
        edges_s = np.arange(HOURS + 1) * HOUR_S
        before = np.array([self.hourly_qps[-1], *self.hourly_qps])
        after = np.array([*self.hourly_qps, self.hourly_qps[0]])
        times_s = np.column_stack([edges_s - RAMP_S / 2, edges_s + RAMP_S / 2]).ravel()
        hourly = np.interp(at_s, times_s, np.column_stack([before, after]).ravel())
        begin_s, end_s = self.crowd_from_s, self.crowd_from_s + CROWD_S
        shape_s = [begin_s, begin_s + RISE_S, end_s - RISE_S, end_s]
        factor = np.interp(at_s, shape_s, [1.0, CROWD_FACTOR, CROWD_FACTOR, 1.0])
        return np.asarray(hourly * factor, dtype=np.float64)

    @property
    def most_qps(self) -> float:
        """The highest rate of the day, by seconds."""
        return float(self.at(np.arange(0.0, DAY_S + 1)).max())


class DayArrivals(NamedTuple):
    """Requests of one day: due times in seconds, and prompt, output and shared tokens."""

    due_s: Floats
    asked: Sequence[Ints]


def elastic_day(question: DayQuestion, experiment: Experiment, serve: ServeDay) -> ElasticDay:
    """All fleets on the same days. Raises ConfigError for traffic or bounds that the day does not know."""
    refuse(experiment)
    fleet = SimulatedFleet.of(question)
    crowd_from_s = hours_by_rate(question)[HOURS // 2] * HOUR_S + INTO_HOUR_S
    rates = DayRates(tuple(rate * fleet.share for rate in question.hourly_qps), crowd_from_s)
    runs: dict[str, list[FleetRun]] = {name: [] for name in FLEETS}
    requests = 0
    for day in range(DAYS):
        arrivals = _arrivals(experiment, rates, day)
        requests += len(arrivals.due_s)
        for name in FLEETS:
            seen = serve(name, fleet, *arrivals, experiment.seed + day)
            runs[name].append(_counted(arrivals, seen, experiment, fleet, crowd_from_s))
    middle_s = (np.arange(DAY_S / SPAN_S) + 0.5) * SPAN_S
    return ElasticDay(
        fleets=tuple(outcome(name, of) for name, of in runs.items()),
        planned_nodes=question.nodes,
        nodes=fleet.nodes,
        days=DAYS,
        requests=requests,
        scale_up_s=question.scale_up_s,
        crowd_from_s=crowd_from_s,
        crowd_s=CROWD_S,
        crowd_factor=CROWD_FACTOR,
        lost_s=fleet.lost_s,
        shown_s=SHOWN_S,
        ramp_s=RAMP_S,
        qps=tuple((rates.at(middle_s) / fleet.share).tolist()),
    )


def refuse(experiment: Experiment) -> None:
    """Raise ConfigError for what a simulated day does not know."""
    workload = experiment.workload
    what = ""
    if workload.has_sessions or workload.replays_prefixes:
        what = "prompts that share histories or a trace's prefixes"
    elif workload.arrivals.kind != "poisson":
        what = f"workload.arrivals.kind={workload.arrivals.kind}"
    elif gaps := {metric_of(limit) for limit in experiment.slo.limits} & set(GAPS):
        what = f"bound on gaps between tokens ({', '.join(sorted(gaps))})"
    elif experiment.slo.strictest_ms("queue"):
        what = "bound on the queue time"
    if what:
        raise ConfigError(f"the simulated day knows no {what}")


def _arrivals(experiment: Experiment, rates: DayRates, day: int) -> DayArrivals:
    """Poisson arrivals at the day's rates: of those at the highest rate, each stays by its time's share."""
    most_qps = rates.most_qps
    window = {"window": (0, round(DAY_S * NS))}
    drawn = Traffic(experiment.workload).draw(most_qps, window, dwell=day, first_seq=0, seed=experiment.seed)
    due_s = drawn.due_ns / NS
    chance = np.random.default_rng([experiment.seed, day, 13]).random(len(due_s))
    stays = chance * most_qps < rates.at(due_s)
    asked = drawn.input_tokens, drawn.output_tokens, drawn.shared_tokens
    return DayArrivals(due_s[stays], [column[stays] for column in asked])


def _counted(
    arrivals: DayArrivals,
    seen: FleetTimes,
    experiment: Experiment,
    fleet: SimulatedFleet,
    crowd_from_s: float,
) -> FleetRun:
    """The figures of one fleet on one day."""
    due_s, failed = arrivals.due_s, np.isnan(seen.last_s)
    over = over_bounds(arrivals, seen, experiment)
    either = np.any(list(over.values()), axis=0)
    figures = {limit: _share(missed) for limit, missed in over.items()}
    figures[EITHER] = _share(either)
    for name, from_s in ((CROWD, crowd_from_s), (LOSS, fleet.lost_s)):
        figures[name] = _share(either[(due_s >= from_s) & (due_s < from_s + SHOWN_S)])
    figures[FAILED] = float(failed.sum())
    figures[MINUTES] = _minutes(due_s, over)
    edges_s = np.arange(0.0, DAY_S + SPAN_S, SPAN_S)
    held_s = np.concatenate([[0.0], np.cumsum(seen.nodes * np.diff(np.append(seen.at_s, math.inf)))[:-1]])
    since = np.searchsorted(seen.at_s, edges_s, side="right") - 1
    node_s = held_s[since] + seen.nodes[since] * (edges_s - seen.at_s[since])
    figures[NODE_HOURS] = float(node_s[-1]) / HOUR_S / fleet.share
    return FleetRun(
        figures,
        tuple((np.diff(node_s) / SPAN_S / fleet.share).tolist()),
        tuple(_by_span(due_s, either, SPAN_S).tolist()),
    )


def over_bounds(arrivals: DayArrivals, seen: FleetTimes, experiment: Experiment) -> Mapping[Limit, Bools]:
    """True where a request is over a bound; one that failed is over all, and over a joint one is any."""
    latency = {
        "ttft": ttft_ms(arrivals.due_s, seen.first_s),
        "tpot": tpot_ms(seen.first_s, seen.last_s, arrivals.asked[1].astype(np.float64)),
        "e2e": (seen.last_s - arrivals.due_s) * 1e3,
    }
    failed, slo = np.isnan(seen.last_s), experiment.slo
    own = {
        limit: (latency[metric_of(limit)] > slo.of(limit)) | failed
        for limit in slo.limits
        if metric_of(limit) != JOINT
    }
    joint: Bools = np.any(list(own.values()), axis=0)
    return {**dict.fromkeys(slo.limits, joint), **own}


def _share(missed: Bools) -> float:
    return float(missed.mean()) if len(missed) else 0.0


def _by_span(due_s: Floats, missed: Bools, span_s: float) -> Floats:
    """The share of the requests of each span that miss; 0 where none is due."""
    spans, at = round(DAY_S / span_s), (due_s // span_s).astype(np.int64)
    count = np.bincount(at, minlength=spans)
    return np.asarray(np.bincount(at, missed, minlength=spans) / np.maximum(count, 1), dtype=np.float64)


def _minutes(due_s: Floats, over: Mapping[Limit, Bools]) -> float:
    """Minutes of the day in which more requests were over a bound than it allows."""
    missed = [_by_span(due_s, each, MINUTE_S) > allowed_over(limit) + 1e-9 for limit, each in over.items()]
    return float(np.any(missed, axis=0).sum())
