"""Writes a table as a Parquet file: encodings by type, row groups that can be skipped, whole or not at all.

Knows types and nothing of columns. `tests/benchmarks/parquet.py` measures what it chooses beside what Parquet
would choose itself.
"""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from conf.io import durable

ROW_GROUP = 32_768
"""Rows that are read or skipped together: 18 MB of the gaps of answers of 140 tokens."""


def write(table: pa.Table, path: Path) -> None:
    """Write `table` as zstd Parquet, whole or not at all (`durable`). Raises OSError on a full disk."""
    write_pieces([table], table.schema, path)


def write_pieces(pieces: Iterable[pa.Table], schema: pa.Schema, path: Path) -> None:
    """Write tables of `schema` as one file, likewise, with no more of them in memory than one."""
    durable.folder(path.parent)
    with (
        durable.replacing(path) as file,
        pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            compression_level=3,
            use_dictionary=[field.name for field in schema if _is_word(field.type)],
            column_encoding={_leaf(field): code for field in schema if (code := _encoding(field.type))},
            write_page_index=True,
        ) as writer,
    ):
        for piece in pieces:
            writer.write_table(piece, row_group_size=ROW_GROUP)


def _is_word(kind: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(kind) or pa.types.is_string(kind))


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
