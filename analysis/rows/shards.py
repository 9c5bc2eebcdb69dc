"""The shards of a run, written row by row while it lasts; its tables, shards and plans joined by request."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.rows import parquet, records

FOLDER = "shards"
UNREADABLE = "unreadable-"
"""Prefix of a file that was kept aside because not all of it can be read."""
KINDS = (
    (re.compile(r"client-\d+\.arrow"), records.SHARD),
    (re.compile(r"driver-\d+\.arrow"), records.PROGRESS),
    (re.compile(r"client-\d+\.health\.arrow"), records.CLIENTS),
    (re.compile(r"server.*\.arrow"), records.SERVER),
    (re.compile(r"power.*\.arrow"), records.POWER),
)
"""Names of shards, and the schema of each."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The readable rows of a shard; `is_whole` unless it holds more than these and a torn end."""

    path: Path
    schema: pa.Schema
    rows: pa.Table
    is_whole: bool


def files(run: Path) -> list[Path]:
    """The shards in a run's folder, in order of their names."""
    return sorted(file for file in (run / FOLDER).glob("*.arrow") if schema_of(file))


def schema_of(file: Path) -> pa.Schema | None:
    """Schema of a shard of this name; None for a file that is no shard."""
    return next((schema for name, schema in KINDS if name.fullmatch(file.name)), None)


def read(run: Path) -> list[Shard]:
    """Every shard in a run's folder. Raises OSError if one cannot be opened."""
    return [
        Shard(file, schema, *records.read_known(file, schema))
        for file in files(run)
        if (schema := schema_of(file)) is not None
    ]


def requests(path: Path, columns: Sequence[str] = records.REQUESTS.names) -> pa.Table:
    """Parquet, shards and saved plans of a run as one row per planned request, by due time.

    If a request has several records, the first counts: that of the Parquet (which shards may outlive, because
    they are removed after it is written), of the load actor, of the driver's progress reports from an actor
    whose shard is out of reach. A planned request without any is `lost`: its load actor died with it.
    """
    read_too = list(dict.fromkeys([*columns, "seq", "due_ns"]))
    batch = read(path)
    tables = [records.read(path / "requests", read_too, skip_torn=bool(batch))]
    tables += recorded(path, batch)
    whole = records.joined([table.select(read_too) for table in tables])
    schema = records.schema_of(columns)
    return pa.concat_tables([schema.empty_table(), *joined([whole], schema)])


def joined(
    tables: Sequence[pa.Table],
    schema: pa.Schema,
    known: npt.ArrayLike = (),
    most_rows: int = parquet.MOST_ROWS,
) -> Iterator[pa.Table]:
    """The rows of all tables by due time, of each request the first, in pieces of `schema`.

    Requests whose numbers are `known` are left out.
    """
    seqs, due_ns = (parquet.column(tables, name) for name in ("seq", "due_ns"))
    first = np.sort(np.unique(seqs, return_index=True)[1])
    first = first[~np.isin(seqs[first], known)]
    return parquet.taken(tables, first[np.argsort(due_ns[first], kind="stable")], schema, most_rows)


def recorded(
    path: Path, shards: Sequence[Shard], wall_start_ns: int | None = None, time_scale: float = 1.0
) -> list[pa.Table]:
    """Records of requests in shards and plans, the better record first."""
    kept = [shard.rows for shard in shards if shard.schema is records.SHARD]
    gaps = records.SHARD.field("itl_us")
    reported = [
        shard.rows.append_column(gaps, pa.nulls(shard.rows.num_rows, gaps.type))
        for shard in shards
        if shard.schema is records.PROGRESS
    ]
    plans = (pq.read_table(file, schema=records.PLAN) for file in plan_files(path))
    return [*kept, *reported, *(records.lost(plan, wall_start_ns, time_scale) for plan in plans)]


def plan_files(path: Path) -> list[Path]:
    """The saved plans; while there are shards, without those that a power cut tore."""
    paths = sorted(path.glob("schedule/*.parquet"))
    return [file for file in paths if not records.is_torn(file)] if files(path) else paths


def series(path: Path, file: str, schema: pa.Schema, source: str, shards: Sequence[Shard]) -> pa.Table:
    """A series of an ended run (`file`) and what the `shards` of a killed session add.

    A row is known by its `source` (a column) and its time.
    """
    tables = [shard.rows for shard in shards if shard.schema is schema]
    known = path / file
    if known.exists() and not (tables and records.is_torn(known)):
        tables.insert(0, pq.read_table(known, schema=schema))  # a torn file fails here, by its name
        parquet.refuse_foreign(known, pq.read_schema(known), records.SERIES_VERSION)
    table, keys = pa.concat_tables([schema.empty_table(), *tables]), [source, "clock_ns"]
    numbered = table.select(keys).append_column("row", pa.array(np.arange(table.num_rows)))
    first = numbered.group_by(keys).aggregate([("row", "min")])["row_min"].to_numpy()
    return table if len(first) == table.num_rows else table.take(pa.array(np.sort(first)))
