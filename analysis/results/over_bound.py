"""The requests of a run that are over a bound, and how many others were sent while they were answered."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity import window_table
from analysis.capacity.window_counts import in_window
from analysis.results.runs import Run, RunError
from analysis.rows import metrics
from conf.specs.bounds import LIMITS, Limit, column, label

NO_WINDOW = "no window of this run is valid and has a known p90"


@dataclass(frozen=True, slots=True, repr=False)
class OverBound:
    """One window against one bound on a p90, both in ms.

    `requests` are the window's, with their latencies, `over` (true where the latency is above the bound) and
    `arrivals`: how many requests were sent while this one was answered, null where it was not.
    """

    window: Mapping[str, Any]
    limit: Limit
    p90_ms: float
    bound_ms: float
    requests: pa.Table

    def __repr__(self) -> str:
        over = sum(self.requests["over"].to_pylist())
        return (
            f"<window {self.window['index']} at {self.window['rate_qps_per_node']:.3g} QPS per node: "
            f"{label(self.limit)} {self.p90_ms:.1f} ms, bound {self.bound_ms:g} ms, {over} of "
            f"{self.requests.num_rows} requests over it>"
        )


def over_bound(run: Run) -> OverBound:
    """The valid window whose p90 of TTFT or TPOT is furthest over its bound, or nearest below it.

    Raises RunError where none is known.
    """
    slo = run.verdict.asked.slo if run.verdict else run.config.slo
    bounds_ms = {limit: slo.bound_ms(limit) for limit in LIMITS if limit in slo.limits}
    lines = [line for line in run.windows().to_pylist() if line["valid"] and line["requests"]]
    known = [(line, limit) for line in lines for limit in bounds_ms if line[column(limit)] is not None]
    if not known:
        raise RunError(NO_WINDOW)
    line, limit = max(known, key=lambda pair: pair[0][column(pair[1])] / bounds_ms[pair[1]])
    rows = in_window(run.requests(latencies=True), window_table.window(line))
    over = getattr(metrics, limit)(rows) > bounds_ms[limit]
    rows = rows.append_column("over", pa.array(over)).append_column("arrivals", _arrivals(run, rows))
    return OverBound(line, limit, line[column(limit)], bounds_ms[limit], rows)


def _arrivals(run: Run, rows: pa.Table) -> pa.Array:
    """Requests of the whole run that were sent after each one was sent and before its last token."""
    sent = np.sort(_instants(run.requests(columns=("due_ns", "send_offset_ns")), "send_offset_ns"))
    sent = sent[~np.isnan(sent)]
    start, end = (_instants(rows, name) for name in ("send_offset_ns", "last_token_offset_ns"))
    count = np.searchsorted(sent, end) - np.searchsorted(sent, start, "right")
    answered = metrics.status_in(rows, "ok") & ~np.isnan(start) & ~np.isnan(end)
    return pa.array(count, mask=~answered)


def _instants(rows: pa.Table, offset: str) -> metrics.Floats:
    """Instants on the run's clock; nan where it never came."""
    return metrics.numbers(rows, "due_ns") + metrics.numbers(rows, offset)
