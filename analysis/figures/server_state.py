"""State of all replicas together at given instants, from their samples of once a second."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from analysis.capacity.window_counts import NS
from analysis.figures.canvas import Floats
from analysis.rows import metrics

STALE_S = 5.0
"""A sample of a gauge stands for so many seconds (our choice: some lost samples, not a lost replica)."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """Sums of requests and means of shares (%) over the replicas that reported them; nan where none did."""

    at_s: Floats
    running: Floats
    waiting: Floats
    kv_pct: Floats
    hit_pct: Floats


def state(samples: pa.Table, at_s: Floats) -> ServerState:
    """The state at each of the ascending instants `at_s`, in seconds of the run's clock.

    The hit rate is found over looked up since the instant before, from the counters' differences; a counter
    that fell (its replica began anew) says nothing of that step.
    """
    unknown = np.full(len(at_s), np.nan)
    ids = samples.column("replica").unique().to_pylist()
    if not ids:
        return ServerState(at_s, unknown, unknown, unknown, unknown)
    of = samples.column("replica").to_numpy(zero_copy_only=False)
    parts = [samples.filter(pa.array(of == replica)).sort_by("clock_ns") for replica in ids]
    gauges = {
        name: np.array([_held(part, name, at_s) for part in parts])
        for name in ("running", "waiting", "kv_usage")
    }
    looked, found = (
        sum(_grown(part, name, at_s) for part in parts) for name in ("prefix_queries", "prefix_hits")
    )
    hit_pct = np.where(looked > 0, 100 * found / np.where(looked > 0, looked, 1), np.nan)
    running, waiting = (_sum(gauges[name]) for name in ("running", "waiting"))
    reported = (~np.isnan(gauges["kv_usage"])).sum(axis=0)
    kv_pct = 100 * _sum(gauges["kv_usage"]) / np.maximum(reported, 1)
    return ServerState(at_s, running, waiting, kv_pct, hit_pct)


def _known(part: pa.Table, name: str) -> tuple[Floats, Floats]:
    at, values = metrics.numbers(part, "clock_ns") / NS, metrics.numbers(part, name)
    kept = ~np.isnan(values)
    return at[kept], values[kept]


def _held(part: pa.Table, name: str, at_s: Floats) -> Floats:
    """The last sample before each instant; nan where there is none, or none fresh enough."""
    at, values = _known(part, name)
    if not len(at):
        return np.full(len(at_s), np.nan)
    last = np.searchsorted(at, at_s, "right") - 1
    fresh = (last >= 0) & (at_s - at[np.maximum(last, 0)] <= STALE_S)
    return np.where(fresh, values[np.maximum(last, 0)], np.nan)


def _grown(part: pa.Table, name: str, at_s: Floats) -> Floats:
    """Growth of a counter since the instant before; 0 where it is unknown."""
    at, values = _known(part, name)
    if len(at) < 2:
        return np.zeros(len(at_s))
    grown = np.diff(np.interp(at_s, at, values), prepend=np.nan)
    return np.where(grown > 0, grown, 0.0)


def _sum(gauges: Floats) -> Floats:
    """Sum over the replicas (rows) that reported; nan where none did."""
    return np.where(np.isnan(gauges).all(axis=0), np.nan, np.nansum(gauges, axis=0))
