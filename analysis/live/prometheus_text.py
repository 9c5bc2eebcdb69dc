"""The figures of a running run as Prometheus metrics: the load, its latencies, the search, the budget.

What is unknown is absent, never 0. Units are Prometheus's base units: seconds, and ratios from 0 to 1.
Rates are QPS per node, as everywhere here.
"""

import math
import re
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as KIND
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from analysis.live.state import Snapshot, WindowSoFar

__all__ = ["KIND", "metrics_page"]

LABELS = ("run", "verb")
BOUND = re.compile(r"(?!joint)([a-z][a-z0-9_]{0,15})_p\d{2,3}_ms")
"""A bound's key in the configuration, `ttft_p90_ms`, and its latency; a joint one bounds no latency."""
MOST_BOUNDS = 8
"""Bounds that become metrics; a configuration has two to four (our choice)."""
MS_PER_S = 1e3


def metrics_page(snapshot: Snapshot) -> bytes:
    """The page of metrics of one snapshot, in Prometheus's text format."""
    return generate_latest(_Snapshot(snapshot))


class _Snapshot(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._labels = snapshot.state.run_id, snapshot.state.verb

    def collect(self) -> Iterator[Metric]:
        state = self._snapshot.state
        yield InfoMetricFamily(
            "maxqps_run", "The run that is watched.", dict(zip(LABELS, self._labels, strict=True))
        )
        for name, help_, value in self._figures():
            yield from self._gauge(name, help_, [((), value)])
        yield from self._requests()
        if state.now is not None:
            yield from self._latencies(state.now)

    def _figures(self) -> Iterator[tuple[str, str, float | None]]:
        """Name, help and value of every figure that stands alone; None where it is unknown."""
        state = self._snapshot.state
        yield "ended", "1 once the run has ended.", int(state.ended)
        yield "exit_code", "Exit code of the run, once it has ended.", state.exit_code
        yield "nodes", "Nodes that the rates are divided by.", self._snapshot.nodes
        yield "windows", "Measurement windows that are over.", len(state.windows)
        voids = sum(window.void for window in state.windows)
        yield "void_windows", "Windows that are void: neither pass nor fail.", voids
        if belief := state.belief:
            yield "capacity_qps", "Estimate of the capacity so far, QPS per node.", belief.qps_per_node
            yield "capacity_low_qps", "2.5 % quantile of the capacity so far, QPS per node.", belief.low
            yield "capacity_high_qps", "97.5 % quantile of the capacity so far, QPS per node.", belief.high
            yield "certified_qps", "5 % quantile of the capacity so far, QPS per node.", belief.certified
            above, below = int(belief.open_above), int(belief.open_below)
            yield "capacity_open_above", "1 while the high end is the prior's: a lower bound only.", above
            yield "capacity_open_below", "1 while the low end is the prior's: an upper bound only.", below
        if now := state.now:
            yield from _of_window(now)

    def _requests(self) -> Iterator[Metric]:
        state, now = self._snapshot.state, self._snapshot.state.now
        failed = sum(window.failed for window in state.windows) + (now.failed if now else 0)
        ended = sum(window.requests - window.pending for window in state.windows)
        answered = ended - sum(window.failed for window in state.windows) + (now.answered if now else 0)
        counts = CounterMetricFamily(
            "maxqps_requests", "Requests of measurement windows that ended.", labels=(*LABELS, "status")
        )
        for status, count in (("answered", answered), ("failed", failed)):
            counts.add_metric((*self._labels, status), count)
        yield counts

    def _latencies(self, now: WindowSoFar) -> Iterator[Metric]:
        """p50 and p90 of each latency so far; each bound, the share over it, and of how many requests."""
        bounds = [(key, bound, BOUND.fullmatch(key)) for key, bound in now.latencies.items()]
        known = [(key, bound, match[1]) for key, bound, match in bounds if match][:MOST_BOUNDS]
        by_name = {name: bound for _, bound, name in known}
        for name, bound in by_name.items():
            for word, ms in (("p50", bound.p50_ms), ("p90", bound.p90_ms)):
                help_ = (
                    f"{word} of {name} over the requests of the running window whose value is known so far."
                )
                yield from self._gauge(f"{name}_{word}_seconds", help_, [((), _seconds(ms))])
        most = "The most that the bounded quantile of a latency may be."
        of_bounds = (
            ("bound_seconds", most, "bound_ms", MS_PER_S),
            ("over_bound_ratio", "Share of the known values that are over the bound.", "over_pct", 100),
            ("known_requests", "Requests of the running window whose latency is known so far.", "known", 1),
        )
        for name, help_, field, divisor in of_bounds:
            values = [((key,), _divided(getattr(bound, field), divisor)) for key, bound, _ in known]
            yield from self._gauge(name, help_, values, "bound")

    def _gauge(
        self, name: str, help_: str, values: Iterable[tuple[tuple[str, ...], float | None]], *labels: str
    ) -> Iterator[Metric]:
        known = [(more, value) for more, value in values if value is not None and not math.isnan(value)]
        if known:
            family = GaugeMetricFamily(f"maxqps_{name}", help_, labels=(*LABELS, *labels))
            for more, value in known:
                family.add_metric((*self._labels, *more), value)
            yield family


def _of_window(now: WindowSoFar) -> Iterator[tuple[str, str, float | None]]:
    yield "window_index", "Number of the running window.", now.index
    yield "offered_qps", "Rate offered in the running window, QPS per node.", now.rate_qps_per_node
    yield "achieved_qps", "Rate sent in the running window so far, QPS per node.", now.achieved_qps_per_node
    yield "in_flight", "Requests of the fleet that are open, of any window.", now.in_flight
    pending = _divided(now.pending_pct, 100)
    yield "window_pending_ratio", "Share of the window's requests still unanswered.", pending
    yield "send_lag_p99_seconds", "p99 of sent minus due in the running window.", _seconds(now.lag_p99_ms)
    yield "send_lag_gate_seconds", "Send lag above which a window is void.", _seconds(now.lag_gate_ms)
    yield "elapsed_seconds", "Part of the budget that is spent, in seconds of the run's clock.", now.elapsed_s
    yield "budget_seconds", "Budget of the search, in seconds of the run's clock.", now.budget_s


def _seconds(ms: float | None) -> float | None:
    return _divided(ms, MS_PER_S)


def _divided(value: float | None, divisor: float) -> float | None:
    return None if value is None else value / divisor
