"""Ray Serve's default rule for the number of replicas, as pure functions.

Ray 2.60 looks at the requests in flight and queued on the replicas that run, and asks for as many replicas
as keep `target_ongoing_requests` on each (`ray.serve.autoscaling_policy`). A wish must last for a delay
before it counts. `test_ray_autoscaler` holds both functions to Ray's own, over random inputs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

RECORD_FACTOR = 0.2
"""A replica notes its requests this often in a look-back period, or once in each report if that is more often
(`RAY_SERVE_AUTOSCALING_METRIC_RECORD_INTERVAL_FACTOR` of Ray 2.60)."""
EPSILON_S = 1e-6
"""Ray's own tolerance of a delay."""


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """Settings of Ray Serve's `AutoscalingConfig`, under its names; at least one replica always runs.

    Raises ValueError for numbers that Ray would refuse.
    """

    min_replicas: int
    max_replicas: int
    target_ongoing_requests: float
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    upscaling_factor: float = 1.0
    downscaling_factor: float = 1.0
    look_back_period_s: float = 30.0
    metrics_interval_s: float = 10.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise ValueError(f"{self.min_replicas} to {self.max_replicas} replicas: at least 1, and in order")
        positive = "target_ongoing_requests", "look_back_period_s", "metrics_interval_s"
        if not all(0 < getattr(self, name) < math.inf for name in positive):
            raise ValueError(f"{', '.join(positive)} must be above 0")

    @property
    def record_interval_s(self) -> float:
        """Time between two notes that a replica takes of its requests."""
        return min(RECORD_FACTOR * self.look_back_period_s, self.metrics_interval_s)

    def bounded(self, replicas: int) -> int:
        """A number of replicas within the rule's least and most."""
        return max(self.min_replicas, min(self.max_replicas, replicas))


class Wish(NamedTuple):
    """The change that the rule wants: up (1), down (-1) or none (0), and since when."""

    direction: int = 0
    since_s: float = 0.0


class ReplicaLoad(NamedTuple):
    """The load that the rule sees: replicas that run, replicas asked for, and requests on those that run."""

    running: int
    target: int
    ongoing: float


def decided(rule: ScalingRule, load: ReplicaLoad, wish: Wish, now_s: float) -> tuple[int, Wish]:
    """The number of replicas to ask for from now on, and what is wanted but not yet old enough."""
    if load.running == 0 and load.ongoing > 0:  # Ray does not wait where nothing runs
        return rule.bounded(max(math.ceil(rule.upscaling_factor), load.target)), wish
    wanted = max(0, _wanted(rule, load))
    if load.running == 0 and wanted > 0:
        return rule.bounded(wanted), wish
    direction = (wanted > load.target) - (wanted < load.target)
    if direction == 0:
        return rule.bounded(load.target), Wish()
    if direction != wish.direction:
        wish = Wish(direction, now_s)
    delay_s = rule.upscale_delay_s if direction > 0 else rule.downscale_delay_s
    if now_s - wish.since_s + EPSILON_S < delay_s:
        return rule.bounded(load.target), wish
    # Ray goes from one replica to none alone; here at least one runs.
    return rule.bounded(max(1, wanted)), Wish()


def _wanted(rule: ScalingRule, load: ReplicaLoad) -> int:
    """Replicas for the load, before any delay and bound."""
    if load.running == 0:
        return load.target
    desired = load.running * (load.ongoing / (rule.target_ongoing_requests * load.running))
    change = desired - load.running
    factor = rule.upscaling_factor if change > 0 else rule.downscaling_factor
    wanted = math.ceil(load.running + factor * change)
    # A small factor would never get below the present number.
    return wanted - 1 if math.ceil(desired) < load.running and wanted == load.running else wanted


class Report(NamedTuple):
    """Notes of one replica: their times (s) and the requests on it, of one look-back period."""

    at_s: Sequence[float]
    requests: Sequence[float]


def ongoing(reports: Sequence[Report], now_s: float) -> float:
    """Mean over time of the sum of requests on all replicas, by their last reports.

    Each note holds until the replica's next one. The mean begins when every replica that reported has a note:
    after a replica has come, Ray looks back less far.
    """
    return OngoingSum.of(reports).mean(now_s)


class OngoingSum(NamedTuple):
    """Requests on all replicas, integrated from `begin_s` to the last note; `last` holds since then."""

    area: float = 0.0
    begin_s: float = 0.0
    last_s: float = math.inf
    last: float = 0.0

    @classmethod
    def of(cls, reports: Sequence[Report]) -> "OngoingSum":
        """The sum by the reports."""
        told = [report for report in reports if len(report.at_s)]
        if not told:
            return cls()
        at_s = np.unique(np.concatenate([report.at_s for report in told]))
        total = np.sum([_held(report, at_s) for report in told], axis=0)
        inside = at_s >= max(report.at_s[0] for report in told)
        at_s, total = at_s[inside], total[inside]
        return cls(float(total[:-1] @ np.diff(at_s)), float(at_s[0]), float(at_s[-1]), float(total[-1]))

    def mean(self, now_s: float) -> float:
        """The mean until now: between reports the last note weighs more and more."""
        since_s = max(0.0, now_s - self.last_s)
        span_s = self.last_s - self.begin_s + since_s
        return (self.area + self.last * since_s) / span_s if 0 < span_s < math.inf else 0.0


def _held(report: Report, at_s: np.ndarray) -> np.ndarray:
    """Requests on a replica at each time; none before its first note."""
    last = np.searchsorted(np.asarray(report.at_s), at_s, side="right") - 1
    values = np.asarray(report.requests, dtype=np.float64)
    return np.where(last >= 0, values[np.maximum(last, 0)], 0.0)


class RayAutoscaler:
    """The rule with its memory: the notes and reports of replicas, and the wish that waits."""

    def __init__(self, rule: ScalingRule) -> None:
        self._rule = rule
        self._wish = Wish()
        self._notes: dict[int, Report] = {}
        self._reports: dict[int, Report] = {}
        self._noted_s = self._reported_s = -math.inf
        self._sum = OngoingSum()

    @property
    def step_s(self) -> float:
        """Time between two looks that misses neither a note nor a report by much."""
        return min(self._rule.record_interval_s, self._rule.metrics_interval_s) / 3

    def asked(self, now_s: float, target: int, requests: Mapping[int, int]) -> int:
        """Replicas to ask for at `now_s`, where `requests` are those on each replica that runs."""
        self._forget(requests)
        if now_s - self._noted_s + EPSILON_S >= self._rule.record_interval_s:
            self._noted_s = now_s
            self._note(now_s, requests)
        if now_s - self._reported_s + EPSILON_S >= self._rule.metrics_interval_s:
            self._reported_s = now_s
            self._reports = dict(self._notes)
            self._sum = OngoingSum.of(list(self._reports.values()))
        load = ReplicaLoad(len(requests), target, self._sum.mean(now_s))
        count, self._wish = decided(self._rule, load, self._wish, now_s)
        return count

    def _forget(self, requests: Mapping[int, int]) -> None:
        """Drop what is known of replicas that run no longer; Ray counts their requests no more."""
        gone = [name for name in self._notes if name not in requests]
        for name in gone:
            del self._notes[name]
            self._reports.pop(name, None)
        if gone:
            self._sum = OngoingSum.of(list(self._reports.values()))

    def _note(self, now_s: float, requests: Mapping[int, int]) -> None:
        oldest_s = now_s - self._rule.look_back_period_s
        for name, count in requests.items():
            known = self._notes.get(name, Report((), ()))
            kept = [(at, seen) for at, seen in zip(*known, strict=True) if at >= oldest_s]
            at_s, seen = zip(*kept, (now_s, count), strict=True)
            self._notes[name] = known._replace(at_s=at_s, requests=seen)


def scaled(rule: ScalingRule, share: float) -> ScalingRule:
    """The rule of a fleet that is smaller by `share`, with as many requests on each replica."""
    least = max(1, round(rule.min_replicas * share))
    return replace(rule, min_replicas=least, max_replicas=max(least, round(rule.max_replicas * share)))
