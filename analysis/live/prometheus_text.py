"""The figures of a running run as Prometheus metrics: the load, its latencies, the search, the budget.

What is unknown is absent, never 0. Units are Prometheus's base units: seconds, and ratios from 0 to 1.
Rates are QPS per node, as everywhere here.
"""

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as KIND
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from analysis.live.state import LiveState
from conf.io import bounded_yaml

__all__ = ["KIND", "metrics_page"]

LABELS = ("run", "verb")
BOUND = re.compile(r"(?!joint)([a-z][a-z0-9_]{0,15})_p\d{2,3}_ms")
"""A bound's key in the configuration, `ttft_p90_ms`, and its latency; a joint one bounds no latency."""
MOST_BOUNDS = 8
"""Bounds that become metrics; a configuration has two to four (our choice)."""
MS_PER_S = 1e3
QUANTILE = "{} of {} over the requests of the running window whose value is known so far."


@cache
def _tables() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Metrics of the newest posterior, of the running window and of each bound, by name."""
    tables: dict[str, dict[str, dict[str, Any]]]
    tables = bounded_yaml.read(Path(__file__).with_name("prometheus.yaml").read_text())
    return tables


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
        for kind, record in (("belief", state.belief), ("window", state.now)):
            for name, metric in _tables()[kind].items():
                value = getattr(record, metric["field"], None)
                yield from self._gauge(name, metric["help"], value, metric.get("divisor", 1))
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
        for name, metric in _tables()["bound"].items():
            family = GaugeMetricFamily(f"maxqps_{name}", metric["help"], labels=(*LABELS, "bound"))
            for key in names:
                value = getattr(latencies[key], metric["field"])
                if value is not None and not math.isnan(value):
                    family.add_metric((*self._labels, key), value / metric.get("divisor", 1))
            if family.samples:
                yield family

    def _gauge(self, name: str, help_: str, value: float | None, divisor: float = 1) -> Iterator[Metric]:
        if value is not None and not math.isnan(value):
            family = GaugeMetricFamily(f"maxqps_{name}", help_, labels=LABELS)
            family.add_metric(self._labels, value / divisor)
            yield family
