"""The records of a run: a row for every planned request, whatever its outcome, and samples of once a second.

Raw monotonic offsets are the truth; latencies are derived from them in `metrics`, and written beside them
by `metrics.with_latencies` for other readers. Seconds of samples are those of the run's clock, milliseconds
are real.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.rows import parquet

SCHEMA_VERSION, SERIES_VERSION = 4, 1
"""Of request tables and of series; files of another version are refused."""

OK = "ok"
FAILURES = ("http_error", "truncated", "timeout", "conn_error", "missed", "lost")
PENDING = "pending"
"""Status of a request in flight; it exists in observations during a run, never in Parquet."""

KEYS = ("seq", "window_index", "phase", "status", "due_ns")
"""Columns of every version of a request table."""

PARQUET = b"PAR1"
"""First and last bytes of a Parquet file."""

MESSAGE_MARK = b"\xff\xff\xff\xff"
"""First bytes of every message of an Arrow stream; the size of its head follows."""
MOST_HEAD_BYTES = 2**20
"""Most bytes of the head of one of our batches (our choice)."""

KEYS_OF_ROWS = ("seq", "due_ns")
"""Columns that no row of a shard of requests lacks."""

REQUESTS = parquet.described("requests", SCHEMA_VERSION)
"""Arrow schema of a request table. Offsets count from `due_ns`, so latency is measured from the plan."""

SHARD = parquet.with_words(REQUESTS, pa.string())
"""`REQUESTS` with words as plain strings: dictionaries would have to agree between a stream's batches."""
_READ_AS = parquet.with_words(REQUESTS, parquet.WIDE_WORD)

SERVER = parquet.described("timeseries", SERIES_VERSION)
"""Arrow schema of timeseries.parquet: one row per replica and second; a figure that a server does not report
is null."""

CLIENTS = parquet.described("clients", SERIES_VERSION)
"""Arrow schema of clients.parquet: one row per load actor and second."""

POWER = parquet.described("power", SERIES_VERSION)
"""Arrow schema of power.parquet: one row per node and sample, about a second apart, or five where a tool must
be asked; there is none where the service uses no GPU, or nothing is known of its nodes."""

PROGRESS = SHARD.remove(SHARD.get_field_index("itl_us"))
"""`SHARD` without the gaps: the reports on requests while a run goes on."""

PLAN = pa.schema(
    [
        *(
            SHARD.field(name)
            for name in ("seq", "window_index", "phase", "stream", "session_id", "turn", "due_ns")
        ),
        *(
            SHARD.field(f"{name}_tokens")
            for name in ("requested_input", "requested_output", "shared", "image", "reusable")
        ),
    ]
)
"""Columns that are known of a request before it is sent."""


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The schema of some columns of a request table."""
    return pa.schema([REQUESTS.field(name) for name in columns], metadata=REQUESTS.metadata)


def table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows (dicts; a missing key is null) as a table of schema `REQUESTS`."""
    return pa.Table.from_pylist(list(rows), schema=REQUESTS)


def empty(schema: pa.Schema, count: int) -> dict[str, pa.Array]:
    """Columns of `count` nulls, to be replaced by what is known."""
    nulls = {kind: pa.nulls(count, kind) for kind in set(schema.types)}
    return {field.name: nulls[field.type] for field in schema}


def lost(plan: pa.Table, wall_start_ns: int | None = None, time_scale: float = 1.0) -> pa.Table:
    """Rows (schema `SHARD`) for planned requests (schema `PLAN`) without any record."""
    count = plan.num_rows
    columns = empty(SHARD, count) | {name: plan.column(name) for name in PLAN.names}
    columns["status"] = pa.repeat("lost", count)
    columns["error_kind"] = pa.repeat("no_record", count)
    if wall_start_ns is not None:
        at_us = ((plan.column("due_ns").to_numpy() / time_scale).astype(np.int64) + wall_start_ns) // 1000
        columns["scheduled_at"] = pa.array(at_us).cast(SHARD.field("scheduled_at").type)
    return pa.table(columns, schema=SHARD)


def write(requests: pa.Table, path: Path) -> None:
    """Write a request table (of `REQUESTS`, or with columns beyond) as Parquet, sorted by `due_ns`.

    Complete or not at all. Raises OSError if the disk does not take it.
    """
    parquet.write(by_due(requests), path)


def write_series(series: pa.Table, path: Path) -> None:
    """Write samples of once a second as Parquet, sorted by `clock_ns`, complete or not at all."""
    parquet.write(series.sort_by("clock_ns"), path)


def files(folder: Path) -> list[Path]:
    """The request tables below `folder`."""
    return sorted(folder.glob("**/*.parquet"))


def read(
    folder: Path,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    skip_torn: bool = False,
) -> pa.Table:
    """All request tables below `folder` as one, sorted by `due_ns`; empty if there are none.

    It reads all columns, or `columns` only: most bytes of a file are in `itl_us`. `where` keeps some rows;
    `skip_torn` leaves out files that a power cut tore, if shards still have their rows. Raises OSError or an
    ArrowException for a file that is broken, or not of requests.
    """
    names = list(REQUESTS.names if columns is None else columns)
    read_too = [*names, *{"due_ns"}.difference(names)]
    tables = [_READ_AS.empty_table().select(read_too)]
    for file in files(folder):
        if skip_torn and is_torn(file):
            continue
        refuse_foreign(file)
        tables.append(pq.read_table(file, schema=_READ_AS, columns=read_too, filters=where))
    return by_due(parquet.narrowed(pa.concat_tables(tables), REQUESTS)).select(names)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables of the same columns of requests one after the other, whose words are bounded together."""
    parts = (parquet.narrowed(table, REQUESTS) for table in tables)
    return parquet.narrowed(pa.concat_tables(parts), REQUESTS)


def is_torn(file: Path) -> bool:
    """True for a Parquet file without its end: its name was on the disk before its bytes were."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        opened.seek(max(0, size - len(PARQUET)))
        return size < 3 * len(PARQUET) or opened.read() != PARQUET


def refuse_foreign(file: Path) -> None:
    """Raise ArrowInvalid for a file of another version, or of something else."""
    parquet.refuse_foreign(file, pq.read_schema(file), SCHEMA_VERSION, "requests", KEYS)


def by_due(requests: pa.Table) -> pa.Table:
    """Rows in order of due time; a table that is in order is returned as it is."""
    due_ns = requests.column("due_ns").to_numpy()
    if (due_ns[1:] >= due_ns[:-1]).all():
        return requests
    order = np.argsort(due_ns, kind="stable")
    return pa.concat_tables(parquet.taken([requests], order, requests.schema))


def read_shard(path: Path) -> pa.Table:
    """Every whole batch of a shard of requests, also of one whose writer was killed in the middle of one."""
    return parquet.narrowed(read_stream(path, SHARD), REQUESTS)


def read_stream(path: Path, schema: pa.Schema) -> pa.Table:
    """Every whole batch of an Arrow IPC stream of `schema`; the cut end of a killed writer is left out."""
    return read_known(path, schema)[0]


def read_known(path: Path, schema: pa.Schema) -> tuple[pa.Table, bool]:
    """The readable rows of an Arrow IPC stream of `schema`, and whether that is all but a torn end.

    Columns that it lacks are null. Raises OSError if it cannot be opened.
    """
    batches, is_whole = _batches(path)
    try:
        return _conformed(batches, schema), is_whole
    except (pa.ArrowException, TypeError):
        return schema.empty_table(), False


def _batches(path: Path) -> tuple[list[pa.RecordBatch], bool]:
    """The batches up to the first that cannot be read, and whether a torn end or nothing follows them.

    A kill leaves a torn end; anything else that cannot be read is damage. The batches are views of the file.
    Raises OSError if it cannot be opened.
    """
    if not path.stat().st_size:
        return [], True
    batches, end = [], 0
    with pa.memory_map(str(path)) as file:
        try:
            stream = pa.ipc.open_stream(file)
            end = file.tell()
            for batch in stream:
                batch.validate(full=True)  # offsets that lead out of the file would end the process
                batches.append(batch)
                end = file.tell()
        except (pa.ArrowException, OSError, EOFError):
            pass  # what came before is whole
        file.seek(end)
        return batches, _is_torn_end(file.read_buffer())


def _is_torn_end(rest: pa.Buffer) -> bool:
    """True for nothing, for zeros (a file that grew unwritten), and for the start of one message."""
    head = rest.slice(0, min(8, rest.size)).to_pybytes()
    if not head.startswith(MESSAGE_MARK):
        return MESSAGE_MARK.startswith(head) or (not any(head) and not any(rest.to_pybytes()))
    if len(head) < 8:
        return True
    head_bytes = int.from_bytes(head[4:], "little")
    if not 0 < head_bytes <= MOST_HEAD_BYTES or 8 + head_bytes >= rest.size:
        return 0 <= head_bytes <= MOST_HEAD_BYTES
    return bool(8 + head_bytes + _body_bytes(rest.slice(8, head_bytes).to_pybytes()) > rest.size)


def _body_bytes(head: bytes) -> int:
    """Bytes that follow the head of a message: the fourth field of Arrow's flatbuffer `Message`.

    0 where the head is no such thing, so that what follows counts as damage.
    """

    def number(at: int, width: int) -> int:
        return int.from_bytes(head[at : at + width], "little", signed=width > 2)

    root = number(0, 4)
    fields = root - number(root, 4)
    offset = number(fields + 10, 2) if fields >= 0 and number(fields, 2) > 10 else 0
    return max(0, number(root + offset, 8)) if offset else 0


def _conformed(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The batches in the columns of `schema`. Raises ArrowException where they are of something else."""
    if not batches:
        return schema.empty_table()
    written = pa.Table.from_batches(batches)
    known = {name: written.column(name) for name in written.column_names}
    lacking = [name for name in KEYS_OF_ROWS if name not in known or known[name].null_count]
    if not known.keys() & set(schema.names) or (lacking and KEYS_OF_ROWS[0] in schema.names):
        raise pa.ArrowInvalid("rows of something else")
    return pa.table(empty(schema, written.num_rows) | known, schema=schema)
