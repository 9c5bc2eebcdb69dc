"""Write every planned request of a run as a line of CSV or JSON, in batches that fit the memory.

The columns are those of requests/*.parquet (schema `metrics.FILE`) and `void_reason`. Infinite (a
failed request) is `inf` in CSV and the string "inf" in JSON, where a null would let failures fall out of a
quantile unseen; unknown is empty, or null. Words of a server stay as they came in JSON; in CSV, which opens
in spreadsheets, one that begins like a formula has an apostrophe before it.
"""

import json
import sys
from collections.abc import Iterator
from io import BytesIO
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from analysis.results.json_border import finite
from analysis.results.runs import Run, RunError, load_run, refuse_out
from analysis.rows import metrics, records
from conf.io import durable, terminal
from conf.io.one_line import reason

FORMATS = {"csv": (".csv",), "jsonl": (".jsonl", ".ndjson")}
"""Formats, each with the endings that `--out` may have."""
BATCH_ROWS = 8192
"""Rows in memory at a time: about 5 MB with the token gaps of answers of 140 tokens (our choice)."""
DIGITS = 4
"""Decimals of a latency in ms; a float32 has no more at 1 s."""
VOID = "void_reason"
SERVER_WORDS = ("error", "error_kind", "finish_reason", "replica_id")
"""Columns with words of the server."""
FORMULA = r"^([=+\-@\t\r])"
"""Beginning of a formula in a spreadsheet; an apostrophe before it makes it text."""
LATENCIES = tuple(name for name in metrics.FILE.names if name not in records.REQUESTS.names)


def export(run: Run | Path | str, format: str, out: Path | str | None = None) -> None:
    """Write the requests of a run, or of the run at a path or URI.

    `out` is written whole or not at all; without it the text goes to standard output. Raises RunError for an
    unknown format, for a place that is no run, and for an `out` that exists.
    """
    out = None if out is None else Path(out)
    if format not in FORMATS:
        raise RunError(f"--format {format} is unknown; choose one of {', '.join(FORMATS)}")
    refuse_out(out)
    blocks = (csv if format == "csv" else jsonl)(run if isinstance(run, Run) else load_run(run))
    if out is None:
        # Exact data for a file or a pipe; a terminal must not obey it.
        sys.stdout.writelines(map(terminal.shown, blocks) if sys.stdout.isatty() else blocks)
        return
    with durable.replacing(out) as file:
        file.writelines(block.encode() for block in blocks)


def csv(run: Run) -> Iterator[str]:
    """Blocks of lines, the first with the column names; `itl_us` is joined by spaces.

    Words of a server that a spreadsheet would run have an apostrophe before them.
    """
    for index, batch in enumerate(batches(run)):
        options = pyarrow.csv.WriteOptions(include_header=index == 0, quoting_style="needed")
        rows, block = _texts(batch), BytesIO()
        columns = {name: pc.replace_substring_regex(rows[name], FORMULA, r"'\1") for name in SERVER_WORDS}
        columns["itl_us"] = pc.binary_join(rows["itl_us"].cast(pa.list_(pa.string())), " ")
        for name, column in columns.items():
            rows = rows.set_column(rows.schema.get_field_index(name), name, column)
        pyarrow.csv.write_csv(rows, block, options)
        yield block.getvalue().decode()


def jsonl(run: Run) -> Iterator[str]:
    """Blocks of lines, each line one object of strict JSON."""
    for batch in batches(run):
        yield "".join(f"{json.dumps(finite(row), allow_nan=False)}\n" for row in _texts(batch).to_pylist())


def batches(run: Run) -> Iterator[pa.Table]:
    """Blocks of all planned requests with latencies and `void_reason`; at least one, be it empty."""
    void = {line["index"]: line[VOID] for line in run.windows().to_pylist() if not line["valid"]}
    stored = _stored(run)
    for block in chain([next(stored, records.REQUESTS.empty_table())], stored):
        rows = metrics.with_latencies(block)
        reasons = [void.get(index) for index in rows["window_index"].to_pylist()]
        yield rows.append_column(VOID, pa.array(reasons, pa.string()))


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


def _texts(rows: pa.Table) -> pa.Table:
    """Times as ISO 8601 in UTC, latencies as decimals and words as plain strings."""
    for index, field in enumerate(rows.schema):
        column = rows.column(index)
        if field.name == "scheduled_at":
            column = pc.strftime(column, "%Y-%m-%dT%H:%M:%SZ")
        elif field.name in LATENCIES:
            column = pc.round(column.cast(pa.float64()), DIGITS)
        elif pa.types.is_dictionary(field.type):
            column = column.cast(pa.string())
        rows = rows.set_column(index, field.name, column)
    return rows
