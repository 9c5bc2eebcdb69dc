"""Write every planned request of a run as a line of CSV or JSON, in batches that fit the memory.

The columns are those of requests/*.parquet (schema `latency_columns.FILE`) and `void_reason`. Infinite (a
failed request) is `inf` in CSV and the string "inf" in JSON, where a null would let failures fall out of a
quantile unseen; unknown is empty, or null. Words of a server stay as they came in JSON; in CSV, which opens
in spreadsheets, one that begins like a formula has an apostrophe before it.
"""

import json
import math
from collections.abc import Iterator
from io import BytesIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from analysis.results.runs import Run, RunError
from analysis.rows import latency_columns, records
from conf.io.one_line import reason

BATCH_ROWS = 8192
"""Rows in memory at a time: about 5 MB with the token gaps of answers of 140 tokens (our choice)."""
DIGITS = 4
"""Decimals of a latency in ms; a float32 has no more at 1 s."""
VOID = "void_reason"
SERVER_WORDS = ("error", "error_kind", "finish_reason", "replica_id")
"""Columns with words of the server."""
FORMULA = r"^([=+\-@\t\r])"
"""Beginning of a formula in a spreadsheet; an apostrophe before it makes it text."""
LATENCIES = tuple(name for name in latency_columns.FILE.names if name not in records.REQUESTS.names)


def csv(run: Run) -> Iterator[str]:
    """Blocks of lines, the first with the column names; `itl_us` is joined by spaces."""
    for index, batch in enumerate(batches(run)):
        options = pyarrow.csv.WriteOptions(include_header=index == 0, quoting_style="needed")
        block = BytesIO()
        pyarrow.csv.write_csv(_flat(batch), block, options)
        yield block.getvalue().decode()


def jsonl(run: Run) -> Iterator[str]:
    """Blocks of lines, each line one object of strict JSON."""
    for batch in batches(run):
        rows = _with_text(batch, "scheduled_at").to_pylist()
        yield "".join(f"{json.dumps(_strict(row), allow_nan=False)}\n" for row in rows)


def batches(run: Run) -> Iterator[pa.Table]:
    """Blocks of all planned requests with latencies and `void_reason`; at least one, be it empty."""
    void = {line["index"]: line[VOID] for line in run.windows().to_pylist() if not line["valid"]}
    empty = True
    for rows in _stored(run):
        empty = False
        yield _marked(latency_columns.with_latencies(rows), void)
    if empty:
        yield _marked(latency_columns.with_latencies(records.REQUESTS.empty_table()), void)


def _stored(run: Run) -> Iterator[pa.Table]:
    """Blocks straight from Parquet; a killed run is first put together from its shards."""
    try:
        if not run.is_collected:
            rows = run.requests()
            yield from (rows.slice(start, BATCH_ROWS) for start in range(0, rows.num_rows, BATCH_ROWS))
            return
        files = records.files(run.path / "requests")
        for file in files:
            records.refuse_foreign(file)
        from pyarrow import dataset  # it brings pandas, for which no other use of `analysis` must wait

        stored = dataset.dataset(list(map(str, files)), records.REQUESTS, format="parquet")
        for batch in stored.to_batches(batch_size=BATCH_ROWS, batch_readahead=0, fragment_readahead=0):
            yield pa.Table.from_batches([batch])
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{run.path} holds a file that cannot be read: {reason(error)}") from error


def _marked(rows: pa.Table, void: dict[int, str]) -> pa.Table:
    reasons = (
        [void.get(window_index) for window_index in rows["window_index"].to_pylist()]
        if void
        else [None] * rows.num_rows
    )
    return rows.append_column(VOID, pa.array(reasons, pa.string()))


def _with_text(rows: pa.Table, *times: str) -> pa.Table:
    """Times as ISO 8601 in UTC, latencies as decimals and words as plain strings."""
    for index, field in enumerate(rows.schema):
        column = rows.column(index)
        if field.name in times:
            column = pc.strftime(column, "%Y-%m-%dT%H:%M:%SZ")
        elif field.name in LATENCIES:
            column = pc.round(column.cast(pa.float64()), DIGITS)
        elif pa.types.is_dictionary(field.type):
            column = column.cast(pa.string())
        rows = rows.set_column(index, field.name, column)
    return rows


def _flat(rows: pa.Table) -> pa.Table:
    """Lists as text, and an apostrophe before words of a server that a spreadsheet would run."""
    rows = _with_text(rows, "scheduled_at")
    for name in SERVER_WORDS:
        words = pc.replace_substring_regex(rows[name], FORMULA, r"'\1")
        rows = rows.set_column(rows.schema.get_field_index(name), name, words)
    index = rows.schema.get_field_index("itl_us")
    gaps = rows.column(index).cast(pa.list_(pa.string()))
    return rows.set_column(index, "itl_us", pc.binary_join(gaps, " "))


def _strict(row: dict[str, object]) -> dict[str, object]:
    return {
        name: None if value != value else "inf" if value == math.inf else value for name, value in row.items()
    }
