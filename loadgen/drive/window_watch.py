"""The running window as it stands: counts, latencies so far, send lag, the budget."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity import client_checks
from analysis.capacity.window_counts import NS, Window, in_window, latency_so_far, parts_over
from analysis.live.state import LatencySoFar, WindowSoFar
from analysis.rows import failures, metrics, records
from analysis.stats.quantiles import quantile
from conf.specs.bounds import PER_REQUEST, Bound, Slo, metric_of

WATCH_S = 2.0
"""Real seconds between two updates for a watcher (our choice)."""


def so_far(
    rows: pa.Table,
    window: Window,
    slo: Slo,
    health: Sequence[dict[str, Any]],
    now_ns: int,
    elapsed_s: float,
) -> WindowSoFar:
    """The window at `now_ns`, in a run that has used `elapsed_s`; `rows` are those planned for it."""
    inside = in_window(rows, window)
    inside = metrics.chosen(inside, metrics.numbers(inside, "due_ns") <= now_ns)
    ok, pending = (metrics.status_in(inside, status) for status in (records.OK, records.PENDING))
    seconds = max(0.0, (min(now_ns, window.window_end_ns) - window.window_start_ns) / NS)
    newest = {one["client_id"]: one.get("in_flight") for one in health}
    counts = [count for count in newest.values() if count is not None]
    return WindowSoFar(
        index=window.index,
        kind=window.kind,
        rate_qps_per_node=None if window.concurrency else window.rate_qps / window.nodes,
        achieved_qps_per_node=inside.num_rows / seconds / window.nodes if seconds else None,
        now_s=now_ns / NS,
        window_start_s=window.window_start_ns / NS,
        window_end_s=window.planned_end_ns / NS,
        sent=inside.num_rows,
        answered=int(ok.sum()),
        failed=int((~ok & ~pending).sum()),
        pending=int(pending.sum()),
        in_flight=round(sum(counts)) if counts else None,
        latencies={bound.column: _latency(inside, slo, bound, now_ns) for bound in slo.bounds},
        lag_p99_ms=quantile(metrics.send_lag(inside), 0.99),
        lag_gate_ms=client_checks.lag_gate_ms(inside, slo),
        elapsed_s=elapsed_s,
        budget_s=None,
        failures=failures.kinds(inside),
    )


def _latency(rows: pa.Table, slo: Slo, bound: Bound, now_ns: int) -> LatencySoFar:
    over, known = parts_over(rows, slo, bound, now_ns)
    total = float(known.sum())
    latency = np.empty(0)
    if metric_of(bound.limit) in PER_REQUEST:
        latency = latency_so_far(rows, bound, now_ns)
    return LatencySoFar(
        bound_ms=bound.ms,
        known=round(total),
        p50_ms=quantile(latency, 0.5),
        p90_ms=quantile(latency, 0.9),
        over_pct=100 * float(over.sum()) / total if total else None,
    )
