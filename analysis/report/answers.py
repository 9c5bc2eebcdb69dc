"""Tables behind a verdict: percentiles, errors."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.figures.exhibit import NoData
from analysis.figures.run_data import RunData, WindowRows
from analysis.report.blocks import Missing, Section
from analysis.report.wording import UNKNOWN, figure, table
from analysis.rows import metrics, records
from analysis.rows.metrics import METRICS
from analysis.stats.estimate import number
from analysis.stats.quantiles import quantile
from analysis.views.shown import Table

MOST_ROWS, MESSAGE_CHARACTERS = 30, 400
"""Our choice; requests/*.parquet has all of them."""
KINDS = ("status", "error_kind", "http_status")
SHOWN_METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL, gaps pooled", "e2e": "E2E"}
SHARES = (0.5, 0.9, 0.95, 0.99)
PERCENTILE_HEADS = ("window", "nominal rate", "latency", *(f"p{100 * share:g}" for share in SHARES))
_METRICS = tuple(one for one in METRICS if one.name in SHOWN_METRICS)


def percentiles(data: RunData) -> list[Table]:
    """Percentiles of every latency in each window, folded; none for a run without requests.

    The throughput is that of the answers due in the window, over its length.
    """
    try:
        windows = data.windows
    except NoData:
        return []
    rows = [line for window in windows for line in _percentile_lines(window)]
    return [Table("Percentiles of every window in ms", PERCENTILE_HEADS, tuple(rows), folded=True)]


def _percentile_lines(window: WindowRows) -> Iterator[tuple[str, ...]]:
    name = f"{window.line['kind']} {window.line['index']}"
    rate = f"{number(window.rate)} QPS per node"
    tokens = metrics.numbers(window.rows, "output_tokens")
    for one in _METRICS:
        values = one.of(window.rows)
        values = values[~np.isnan(values)]
        ends = (figure(quantile(values, share)) if len(values) else UNKNOWN for share in SHARES)
        yield name, rate, SHOWN_METRICS[one.name], *ends
    per_s = float(np.nansum(tokens)) / window.window.seconds
    yield name, rate, f"throughput {figure(per_s)} output tokens/s", "", "", "", ""


def errors(data: RunData) -> Section:
    """Failures by kind with the first message of each, most frequent first, or that there are none."""
    title = "Failed requests by kind (requests/*.parquet)"
    block: Table | Missing
    try:
        found = errors_table(data)
        note = f"The {MOST_ROWS} most frequent kinds at most." if found.num_rows == MOST_ROWS else ""
        words = frozenset({found.column_names.index("first_message")})
        block = replace(table(title, found, "none"), words=words, note=note)
    except NoData as why:
        block = Missing(title, str(why))
    purpose = "What failed, and in whose words. A failed request counts as infinitely late."
    return Section("errors", "Errors", purpose, (block,))


def errors_table(data: RunData) -> pa.Table:
    """Each status, kind and HTTP status of failures with its count, share in % and first message.

    The most frequent first, at most thirty rows. Raises NoData where nothing failed.
    """
    rows = data.requests.select((*KINDS, "error", "phase"))
    rows = rows.filter(pa.array(~metrics.word_in(rows, "phase", "retracted")))
    failed = rows.filter(pa.array(metrics.status_in(rows, *records.FAILURES)))
    if not failed.num_rows:
        raise NoData(f"no failures among {rows.num_rows:,} requests")
    plain = pa.table({name: failed[name].cast(pa.string()) for name in ("status", "error_kind", "error")})
    plain = plain.append_column("http_status", failed["http_status"])
    found = plain.group_by(KINDS, use_threads=False).aggregate([("status", "count"), ("error", "first")])
    shares = pc.multiply(100.0 / rows.num_rows, found["status_count"])
    words = pc.utf8_slice_codeunits(found["error_first"], 0, MESSAGE_CHARACTERS)
    columns = {"requests": found["status_count"], "share_pct": shares, "first_message": words}
    counted = pa.table({**{name: found[name] for name in KINDS}, **columns})
    order = [("requests", "descending"), *((name, "ascending") for name in KINDS)]
    return counted.sort_by(order).slice(0, MOST_ROWS)
