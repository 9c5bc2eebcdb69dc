"""The event of a finished window: its p90s, shares and verdict.

Knows the rows of one window; decides nothing.
"""

import dataclasses
import math
from typing import Any

import pyarrow as pa

from analysis.capacity.validity import Verdict
from analysis.capacity.window_counts import Window, latency_so_far
from analysis.rows import metrics
from analysis.stats.quantiles import quantile
from conf.specs.bounds import ALLOWED_OVER, LIMITS, QUANTILE
from conf.specs.experiment import Slo
from loadgen.search.segments import Outcome


def segment_done(outcome: Outcome, rows: pa.Table, verdict: Verdict, slo: Slo, now_ns: int) -> dict[str, Any]:
    """The facts of a window, of which `resume` needs segment, window, bad and void again."""
    dwell = outcome.dwell
    return {
        "index": dwell.index,
        "kind": dwell.kind,
        "rate_qps_per_node": outcome.segment.rate_qps,
        "requests": dwell.requests,
        "failed": dwell.failed,
        "pending": dwell.pending,
        **{b.column: quantile(latency_so_far(rows, b, now_ns), QUANTILE) for b in slo.bounds},
        "over_ttft_pct": _percent(dwell.ttft.share),
        "over_tpot_pct": _percent(dwell.tpot.share),
        "lag_p99_ms": quantile(metrics.send_lag(rows), 0.99),
        "work_qps_per_node": math.exp(dwell.log_work),
        "verdict": word(outcome, verdict),
        "bad": outcome.bad,
        "void": outcome.void,
        "segment": dataclasses.asdict(outcome.segment),
        "window": {f.name: getattr(dwell, f.name) for f in dataclasses.fields(Window)},
    }


def word(outcome: Outcome, verdict: Verdict) -> str:
    """One word on a window: void with its reason, aborted, or which limits were kept (share over <= 10 %)."""
    if outcome.void:
        return f"VOID {verdict.reason}"
    if not verdict.valid:
        return f"VOID {verdict.reason}, but {'bad' if outcome.bad else 'good'} all the same"
    over = [limit for limit in LIMITS if (outcome.dwell.over(limit).share or 0) > ALLOWED_OVER]
    state = f"over {' and '.join(over)}" if over else "within"
    return f"{state} (ended early)" if outcome.aborted else state


def _percent(share: float | None) -> float | None:
    """A share as percent; unknown stays unknown."""
    return None if share is None else 100 * share
