"""Answers about runs as Arrow tables, with the unit in every column's name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity import window_table
from analysis.capacity.window_counts import in_window
from analysis.results import summary
from analysis.results.runs import Run, RunError
from analysis.rows import metrics, parquet
from analysis.rows.metrics import METRICS, Metric
from analysis.rows.records import REQUESTS
from analysis.stats.quantiles import quantile
from conf.specs.bounds import LIMITS, Limit, column, label

BY = (
    *("window_index", "phase", "replica_id", "client_id", "stream", "session_id", "turn"),
    *("status", "error_kind", "http_status", "finish_reason"),
)
"""Columns that rows are grouped by."""
QUANTILES = (0.5, 0.9, 0.99)

CAPACITIES = parquet.described("capacities")
"""Schema of `capacity_table`."""


def percentiles(
    run: Run, metric: str = "ttft", q: Sequence[float] = QUANTILES, by: str = "window_index"
) -> pa.Table:
    """Quantiles `q` of one of `METRICS` in the windows of a run, a row per value of the column `by`.

    Columns: `by`, `n` (requests, or gaps, of which the metric is known), `failed` (of these, infinite), and
    one per quantile, `ttft_p90_ms`, infinite where a failure decides it. Void windows are among them
    (`run.windows()` says which). By `phase` there is a row for each phase, not for windows alone; what the
    search took back is in none. Raises RunError for an unknown word.
    """
    _metric(metric, by)
    # Most bytes of a row are its gaps.
    gaps = ["itl_us"] if metric == "itl" else []
    columns = list(dict.fromkeys((by, "phase", *metrics.NEEDED, "queue_us", *gaps)))
    rows = run.requests(columns=columns, phase=None if by == "phase" else "window")
    if by == "phase":
        rows = rows.filter(pa.array(~metrics.word_in(rows, "phase", "retracted")))
    return percentiles_of(rows, metric, q, by)


def percentiles_of(
    rows: pa.Table, metric: str = "ttft", q: Sequence[float] = QUANTILES, by: str = "window_index"
) -> pa.Table:
    """The same of request rows at hand, all that are given; they need `by` and the metric's columns."""
    chosen = _metric(metric, by)
    if not all(0 <= share <= 1 for share in q):
        raise RunError(f"q={list(q)} is not of shares from 0 to 1; 0.9 is the 90th percentile")
    # `ttft_p99_9_ms`: no dot, which SQL would take for a table's.
    names = {f"{metric}_p{100 * share:g}_ms".replace(".", "_"): share for share in q}
    lines = []
    for key, part in groups(rows, by):
        latency = chosen.of(part)
        latency = np.sort(latency[~np.isnan(latency)])  # once, for all quantiles
        counts = {by: key, "n": len(latency), "failed": int(np.isinf(latency).sum())}
        lines.append(counts | {name: quantile(latency, share) for name, share in names.items()})
    kind = REQUESTS.field(by).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    columns = [
        (by, kind),
        ("n", pa.int64()),
        ("failed", pa.int64()),
        *((name, pa.float64()) for name in names),
    ]
    return pa.Table.from_pylist(lines, schema=pa.schema(columns))


def _metric(name: str, by: str) -> Metric:
    """A metric by its name. Raises RunError for an unknown one, and for a column `by` of other rows."""
    if by not in BY:
        raise RunError(f"no percentiles by '{by}'; by one of {', '.join(BY)}")
    known = {metric.name: metric for metric in METRICS}
    if name not in known:
        raise RunError(f"no metric '{name}'; one of {', '.join(known)}")
    return known[name]


def groups(rows: pa.Table, by: str) -> Iterator[tuple[Any, pa.Table]]:
    """Rows by the value of a column, in its order, null last; each group's in their own order."""
    if not rows.num_rows:
        return
    codes = rows.column(by).unify_dictionaries().combine_chunks().dictionary_encode()
    keys = [*codes.dictionary.to_pylist(), None]
    place = codes.indices.fill_null(len(keys) - 1).to_numpy()
    if (place[1:] < place[:-1]).any():
        order = np.argsort(place, kind="stable")
        rows, place = rows.take(pa.array(order)), place[order]
    starts = [0, *(np.flatnonzero(np.diff(place)) + 1), len(place)]
    parts = [(keys[place[a]], rows.slice(a, b - a)) for a, b in zip(starts, starts[1:], strict=False)]
    yield from sorted(parts, key=lambda group: (group[0] is None, group[0]))


def capacity_table(runs: Sequence[Run]) -> pa.Table:
    """One row per run (schema `CAPACITIES`): what was asked, the verdict, and the capacity it claims.

    Figures are null where the run claims none: of a void run all, of an open end the one beyond it.
    """
    return pa.Table.from_pylist([_capacity_line(run) for run in runs], schema=CAPACITIES)


def _capacity_line(run: Run) -> Mapping[str, object]:
    verdict, capacity, experiment = run.verdict, run.capacity, run.experiment
    counted = verdict.requests if verdict else None
    line = {
        "run": run.name,
        **parquet.record_columns(CAPACITIES, experiment),
        **{f"bound_{column(limit)}": getattr(experiment.slo, column(limit)) for limit in LIMITS},
        "verdict": summary.word(verdict),
        "requests": counted.rows if counted else run.requests(columns=["seq"]).num_rows,
    }
    if capacity is None:
        return line
    claimed = capacity.claimed
    return line | {
        **{f"{name}_qps_per_node": getattr(claimed, name) for name in ("low", "high", "certified")},
        "estimate_qps_per_node": None if claimed.is_bound else claimed.value,
        "interval_of": capacity.kind(experiment) or "sampling noise",
        "binding": capacity.binding,
        "windows_used": len(capacity.windows_used or ()),
    }


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
    slo = run.verdict.experiment.slo if run.verdict else run.config.slo
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

    def instants(rows: pa.Table, offset: str) -> metrics.Floats:
        return metrics.numbers(rows, "due_ns") + metrics.numbers(rows, offset)

    sent = np.sort(instants(run.requests(columns=("due_ns", "send_offset_ns")), "send_offset_ns"))
    sent = sent[~np.isnan(sent)]
    start, end = (instants(rows, name) for name in ("send_offset_ns", "last_token_offset_ns"))
    count = np.searchsorted(sent, end) - np.searchsorted(sent, start, "right")
    answered = metrics.status_in(rows, "ok") & ~np.isnan(start) & ~np.isnan(end)
    return pa.array(count, mask=~answered)
