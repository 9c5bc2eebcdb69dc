"""The figures of a running run as Prometheus metrics: the load, its latencies, the search, the budget.

What is unknown is absent, never 0. Units are Prometheus's base units: seconds, and ratios from 0 to 1.
Rates are QPS per node, as everywhere here.
"""

import math
import re
from collections.abc import Iterator
from itertools import islice

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as KIND
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from analysis.live.state import LiveState

__all__ = ["KIND", "metrics_page"]

LABELS = ("run", "verb")
BOUND = re.compile(r"(?!joint)([a-z][a-z0-9_]{0,15})_p\d{2,3}_ms")
"""A bound's key in the configuration, `ttft_p90_ms`, and its latency; a joint one bounds no latency."""
MOST_BOUNDS = 8
"""Bounds that become metrics; a configuration has two to four (our choice)."""
MS_PER_S = 1e3
BELIEF = (
    ("capacity_qps", "Estimate of the capacity so far, QPS per node.", "qps_per_node", 1),
    ("capacity_low_qps", "2.5 % quantile of the capacity so far, QPS per node.", "low", 1),
    ("capacity_high_qps", "97.5 % quantile of the capacity so far, QPS per node.", "high", 1),
    ("certified_qps", "5 % quantile of the capacity so far, QPS per node.", "certified", 1),
    ("capacity_open_above", "1 while the high end is the prior's: a lower bound only.", "open_above", 1),
    ("capacity_open_below", "1 while the low end is the prior's: an upper bound only.", "open_below", 1),
)
WINDOW = (
    ("window_index", "Number of the running window.", "index", 1),
    ("offered_qps", "Rate offered in the running window, QPS per node.", "rate_qps_per_node", 1),
    ("achieved_qps", "Rate sent in the running window so far, QPS per node.", "achieved_qps_per_node", 1),
    ("in_flight", "Requests of the fleet that are open, of any window.", "in_flight", 1),
    ("window_pending_ratio", "Share of the window's requests still unanswered.", "pending_pct", 100),
    ("send_lag_p99_seconds", "p99 of sent minus due in the running window.", "lag_p99_ms", MS_PER_S),
    ("send_lag_gate_seconds", "Send lag above which a window is void.", "lag_gate_ms", MS_PER_S),
    ("elapsed_seconds", "Part of the budget that is spent, in seconds of the run's clock.", "elapsed_s", 1),
    ("budget_seconds", "Budget of the search, in seconds of the run's clock.", "budget_s", 1),
)
QUANTILE = "{} of {} over the requests of the running window whose value is known so far."
BOUNDED = (
    ("bound_seconds", "The most that the bounded quantile of a latency may be.", "bound_ms", MS_PER_S),
    ("over_bound_ratio", "Share of the known values that are over the bound.", "over_pct", 100),
    ("known_requests", "Requests of the running window whose latency is known so far.", "known", 1),
)
"""Metrics of the newest posterior, of the running window and of each bound: name, help, field, and what it is
divided by."""


def metrics_page(state: LiveState) -> bytes:
    """The page of metrics of one state, in Prometheus's text format."""
    return generate_latest(_Metrics(state))


class _Metrics(Collector):
    def __init__(self, state: LiveState) -> None:
        self._state = state
        self._labels = state.run_id, state.verb

    def collect(self) -> Iterator[Metric]:
        state = self._state
        yield InfoMetricFamily(
            "maxqps_run", "The run that is watched.", dict(zip(LABELS, self._labels, strict=True))
        )
        exit_code = state.ending.exit_code if state.ending else None
        yield from self._gauge("ended", "1 once the run has ended.", bool(state.ending))
        yield from self._gauge("exit_code", "Exit code of the run, once it has ended.", exit_code)
        yield from self._gauge("nodes", "Nodes that the rates are divided by.", state.nodes)
        yield from self._gauge("windows", "Measurement windows that are over.", len(state.windows))
        voids = sum(window.void for window in state.windows)
        yield from self._gauge("void_windows", "Windows that are void: neither pass nor fail.", voids)
        for record, table in ((state.belief, BELIEF), (state.now, WINDOW)):
            for name, help_, field, divisor in table:
                yield from self._gauge(name, help_, getattr(record, field, None), divisor)
        yield self._requests()
        yield from self._latencies()

    def _requests(self) -> Metric:
        windows, now = self._state.windows, self._state.now
        failed = sum(window.failed for window in windows)
        answered = sum(window.requests - window.pending for window in windows) - failed
        counts = CounterMetricFamily(
            "maxqps_requests", "Requests of measurement windows that ended.", labels=(*LABELS, "status")
        )
        counts.add_metric((*self._labels, "answered"), answered + (now.answered if now else 0))
        counts.add_metric((*self._labels, "failed"), failed + (now.failed if now else 0))
        return counts

    def _latencies(self) -> Iterator[Metric]:
        """p50 and p90 of each latency so far; each bound, the share over it, and of how many requests."""
        latencies = self._state.now.latencies if self._state.now else {}
        names = {key: match[1] for key in latencies if (match := BOUND.fullmatch(key))}
        names = dict(islice(names.items(), MOST_BOUNDS))
        for name, key in {name: key for key, name in names.items()}.items():
            for word in ("p50", "p90"):
                ms = getattr(latencies[key], f"{word}_ms")
                help_ = QUANTILE.format(word, name)
                yield from self._gauge(f"{name}_{word}_seconds", help_, ms, MS_PER_S)
        for name, help_, field, divisor in BOUNDED:
            family = GaugeMetricFamily(f"maxqps_{name}", help_, labels=(*LABELS, "bound"))
            for key in names:
                if (value := getattr(latencies[key], field)) is not None and not math.isnan(value):
                    family.add_metric((*self._labels, key), value / divisor)
            if family.samples:
                yield family

    def _gauge(self, name: str, help_: str, value: float | None, divisor: float = 1) -> Iterator[Metric]:
        if value is not None and not math.isnan(value):
            family = GaugeMetricFamily(f"maxqps_{name}", help_, labels=LABELS)
            family.add_metric(self._labels, value / divisor)
            yield family
