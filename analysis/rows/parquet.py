"""Schemas with a unit and a meaning for every column, and tables written as Parquet, whole or not at all.

`tests/benchmarks/parquet.py` measures what it chooses beside what Parquet would choose itself.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from conf.io import durable
from conf.io.one_line import one_line

ROW_GROUP = 32_768
"""Rows that are read or skipped together: 18 MB of the gaps of answers of 140 tokens."""
Column = tuple[str, pa.DataType, str, str]
"""Name, type, unit (may be empty) and meaning."""


def schema(columns: Iterable[Column], metadata: Mapping[str, str] | None = None) -> pa.Schema:
    """The schema of `columns`, with unit and meaning in each field's metadata."""
    fields = [
        pa.field(name, type_, metadata={"unit": unit, "doc": doc} if unit else {"doc": doc})
        for name, type_, unit, doc in columns
    ]
    return pa.schema(fields, metadata=metadata)


def refuse_version(path: Path, written: pa.Schema, known: int) -> None:
    """Raise ArrowInvalid for a file that says another `schema_version` than the `known` one."""
    said = (written.metadata or {}).get(b"schema_version", str(known).encode())
    if said != str(known).encode():
        version = one_line(said.decode(errors="replace"), 40)
        raise pa.ArrowInvalid(f"{path} has schema_version {version}, this version reads {known} alone")


def write(table: pa.Table, path: Path) -> None:
    """Write `table` as zstd Parquet, whole or not at all (`durable`). Raises OSError on a full disk."""
    write_pieces([table], table.schema, path)


def write_pieces(pieces: Iterable[pa.Table], schema: pa.Schema, path: Path) -> None:
    """Write tables of `schema` as one file, likewise, with no more of them in memory than one."""
    durable.folder(path.parent)
    words = [one.name for one in schema if pa.types.is_dictionary(one.type) or pa.types.is_string(one.type)]
    with (
        durable.replacing(path) as file,
        pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            compression_level=3,
            use_dictionary=words,
            column_encoding={field.name: "DELTA_BINARY_PACKED" for field in schema if _grows(field.type)},
            write_page_index=True,
        ) as writer,
    ):
        for piece in pieces:
            writer.write_table(piece, row_group_size=ROW_GROUP)


def _grows(kind: pa.DataType) -> bool:
    """True for times and counts, which are smaller as differences; figures and gaps are stored as they are.

    BYTE_STREAM_SPLIT would make figures 3 % and gaps 20 % smaller, but pyarrow 15, DuckDB 1.5, Polars 0.20,
    Spark 4.0 and fastparquet cannot read it.
    """
    return bool(pa.types.is_int64(kind) or pa.types.is_timestamp(kind))
