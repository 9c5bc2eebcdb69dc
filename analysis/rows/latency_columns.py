"""Latency columns of requests/*.parquet beside the record, so that a line of SQL can ask for them.

They are computed when the rows are written and never read back: the raw offsets are the truth, and a
changed definition needs no new run.
"""

import json

import numpy as np
import pyarrow as pa

from analysis.rows import metrics, records

LATENCIES = tuple(m for m in metrics.METRICS if m.name in ("send_lag", "ttft", "tpot", "e2e"))
NAMES = tuple(f"{metric.name}_ms" for metric in LATENCIES)
"""Names of the latency columns."""
NEEDED = tuple(dict.fromkeys(("phase", *(name for metric in LATENCIES for name in metric.columns))))
"""Columns of the record that the latencies are made of."""
FORMULAS = {metric.name: metric.formula for metric in metrics.METRICS}
"""Formulas of all latencies, also of those that are computed when asked for only."""


def _field(metric: metrics.Metric) -> pa.Field:
    infinite = "never sent" if metric.name == "send_lag" else "failed"
    doc = f"{metric.meaning}; infinite: {infinite}; null: unknown"
    metadata = {"unit": "ms", "doc": doc, "formula": metric.formula}
    return pa.field(f"{metric.name}_ms", pa.float32(), metadata=metadata)


FILE = pa.schema(
    [*records.REQUESTS, *map(_field, LATENCIES)],
    metadata={**records.REQUESTS.metadata, b"formulas": json.dumps(FORMULAS)},
)
"""Arrow schema of requests/*.parquet: the record and, after it, these latencies."""


def with_latencies(requests: pa.Table) -> pa.Table:
    """A table that has the columns `NEEDED` with its latencies after them, in the fields of schema `FILE`."""
    withdrawn = metrics.word_in(requests, "phase", "retracted")
    columns = [_column(metric.of(requests), withdrawn) for metric in LATENCIES]
    fields = [FILE.field(name) for name in (*requests.column_names, *NAMES)]
    return pa.table([*requests.columns, *columns], schema=pa.schema(fields, metadata=FILE.metadata))


def _column(latency_ms: metrics.Floats, withdrawn: metrics.Bools) -> pa.Array:
    """nan is null; a request that the search retracted before it was due has no latency."""
    return pa.array(latency_ms.astype(np.float32), mask=withdrawn | np.isnan(latency_ms))
