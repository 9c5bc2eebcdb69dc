"""Schemas with a unit and a meaning for every column, and tables written as Parquet, whole or not at all.

Knows types and nothing of columns. `tests/benchmarks/parquet.py` measures what it chooses beside what Parquet
would choose itself.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from conf.io import durable

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
            column_encoding={_leaf(field): code for field in schema if (code := _encoding(field.type))},
            write_page_index=True,
        ) as writer,
    ):
        for piece in pieces:
            writer.write_table(piece, row_group_size=ROW_GROUP)


def _encoding(kind: pa.DataType) -> str | None:
    """Times and counts that grow by differences, figures with their bytes apart, the rest as it is."""
    if pa.types.is_list(kind):
        return "BYTE_STREAM_SPLIT" if pa.types.is_int32(kind.value_type) else None
    if pa.types.is_int64(kind) or pa.types.is_timestamp(kind):
        return "DELTA_BINARY_PACKED"
    return "BYTE_STREAM_SPLIT" if pa.types.is_floating(kind) else None


def _leaf(field: pa.Field) -> str:
    """The column's path in Parquet: by a list's own name an encoding is accepted and silently not used."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else str(field.name)
