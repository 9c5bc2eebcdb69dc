"""Schemas with a unit and a meaning for every column; tables written as Parquet, and taken in pieces.

Words from servers, such as a replica's name, are bounded in number and length so that a column holds them.

Arrow's own `take` joins all chunks of a list into one, which fails beyond 2^31 elements: 4 h of 1000 answers
of 140 tokens a second. `tests/benchmarks/parquet.py` measures what is chosen beside Parquet's own choice.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.stats.estimate import Estimate
from conf.io import durable
from conf.io.one_line import one_line

MOST_ROWS = 32_768
"""Rows of a row group of Parquet, and of a piece: 18 MB of the gaps of answers of 140 tokens."""
MOST_ELEMENTS = 2**26
"""Elements of the lists of a piece: where answers are long it has fewer rows (our choice)."""
LIST = "list of "
Ints = npt.NDArray[np.int64]


def described(
    file: str, version: int | None = None, kinds: Mapping[str, pa.DataType] = MappingProxyType({})
) -> pa.Schema:
    """The schema of a file by its columns in columns.csv, with unit and meaning in each field's metadata.

    `version` is that which the file states; `kinds` are types that only this file has. Raises KeyError for a
    file that the table does not have.
    """
    fields = []
    for row in (row for row in _columns() if row["file"] == file):
        said = {key: row[name] for key, name in (("unit", "unit"), ("doc", "meaning")) if row[name]}
        fields.append(pa.field(row["column"], _type(row["type"], kinds), metadata=said or None))
    if not fields:
        raise KeyError(file)
    return pa.schema(fields, metadata=version and {"schema_version": str(version)})


@cache
def _columns() -> list[dict[str, str]]:
    """The columns of all Parquet files: type, unit and meaning, empty where the name says them."""
    with Path(__file__).with_name("columns.csv").open(newline="") as table:
        return list(csv.DictReader(table))


def _type(name: str, kinds: Mapping[str, pa.DataType]) -> pa.DataType:
    if name.startswith(LIST):
        return pa.list_(_type(name.removeprefix(LIST), kinds))
    return WORD if name == "word" else kinds.get(name) or pa.type_for_alias(name)


def record_columns(schema: pa.Schema, *records: object) -> dict[str, object]:
    """The columns of a schema that records have as fields, with the ends of an estimate; later ones win."""
    row: dict[str, object] = {}
    for record in records:
        for name in schema.names:
            value = getattr(record, name, None)
            if isinstance(value, Estimate):
                row |= estimate_columns(name, value)
            elif value is not None:
                row[name] = value
    return row


def estimate_columns(name: str, figure: Estimate | None) -> dict[str, object]:
    """An estimate with its ends as columns; none without one."""
    ends = {"": "value", "_low": "low", "_high": "high", "_certified": "certified"}
    return {f"{name}{suffix}": getattr(figure, end) for suffix, end in ends.items()} if figure else {}


def refuse_foreign(
    path: Path, written: pa.Schema, known: int, what: str = "", keys: Iterable[str] = ()
) -> None:
    """Raise ArrowInvalid for a file of another `schema_version` than the `known` one, or without its `keys`.

    The rows of a table that is not of `what` would be of nulls.
    """
    said = (written.metadata or {}).get(b"schema_version", str(known).encode())
    if said != str(known).encode():
        version = one_line(said.decode(errors="replace"), 40)
        raise pa.ArrowInvalid(f"{path} has schema_version {version}, this version reads {known} alone")
    if lacking := [name for name in keys if name not in written.names]:
        raise pa.ArrowInvalid(f"{path} is no table of {what}: it lacks {', '.join(lacking)}")


def write(table: pa.Table, path: Path) -> None:
    """Write `table` as zstd Parquet, whole or not at all (`durable`). Raises OSError on a full disk."""
    write_pieces([table], table.schema, path)


def write_pieces(pieces: Iterable[pa.Table], schema: pa.Schema, path: Path) -> None:
    """Write tables of `schema` as one file, likewise, with no more of them in memory than one."""
    durable.folder(path.parent)
    words = [
        column.name
        for column in schema
        if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type)
    ]
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
            writer.write_table(piece, row_group_size=MOST_ROWS)


def _grows(kind: pa.DataType) -> bool:
    """True for times and counts, which are smaller as differences; figures and gaps are stored as they are.

    BYTE_STREAM_SPLIT would make figures 3 % and gaps 20 % smaller, but pyarrow 15, DuckDB 1.5, Polars 0.20,
    Spark 4.0 and fastparquet cannot read it.
    """
    return bool(pa.types.is_int64(kind) or pa.types.is_timestamp(kind))


def taken(
    tables: Sequence[pa.Table],
    index: Ints,
    schema: pa.Schema,
    most_rows: int = MOST_ROWS,
    most_elements: int = MOST_ELEMENTS,
) -> Iterator[pa.Table]:
    """The rows numbered by `index`, counted through all tables, in that order, as tables of `schema`.

    The tables have its columns, of types that can be cast to its own.
    """
    batches = [batch for table in tables for batch in table.select(schema.names).to_batches() if len(batch)]
    starts = np.cumsum([0, *(len(batch) for batch in batches)])
    elements = np.concatenate([[0], np.cumsum(_elements(batches, schema)[index])])
    start = 0
    while start < len(index):
        fits = int(np.searchsorted(elements, elements[start] + most_elements, side="right")) - 1
        end = max(start + 1, min(start + most_rows, fits))
        yield _piece(batches, starts, index[start:end], schema)
        start = end


def column(tables: Sequence[pa.Table], name: str) -> Ints:
    """A column of whole numbers of all tables, one after the other."""
    return np.concatenate([np.zeros(0, np.int64), *(table[name].to_numpy() for table in tables)])


def _elements(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> Ints:
    counts = np.zeros(sum(len(batch) for batch in batches), np.int64)
    for name in [field.name for field in schema if pa.types.is_list(field.type)]:
        lengths = [pc.fill_null(pc.list_value_length(batch[name]), 0) for batch in batches]
        counts += np.concatenate([np.zeros(0, np.int64), *lengths])
    return counts


def _piece(batches: Sequence[pa.RecordBatch], starts: Ints, index: Ints, schema: pa.Schema) -> pa.Table:
    order = np.argsort(index, kind="stable")
    rows = index[order]
    at = np.searchsorted(starts, rows, side="right") - 1
    changes = np.flatnonzero(np.diff(at)) + 1
    spans = zip([0, *changes], [*changes, len(rows)], strict=True)
    own = [batches[at[start]].take(pa.array(rows[start:end] - starts[at[start]])) for start, end in spans]
    # One cast for batches alike: a run has as many of them as seconds.
    alike = (pa.Table.from_batches(list(some)) for _, some in groupby(own, attrgetter("schema")))
    return pa.concat_tables([table.cast(schema) for table in alike]).take(pa.array(np.argsort(order)))


OTHER_WORD = "(other)"
"""Stands for every word that came after the first `MOST_WORDS`."""
MOST_WORDS = 4096
"""Different words of a column: more than a fleet has replicas, far less than 16 bits hold (our choice)."""
WORD_LETTERS = 120
"""Letters of a word that are kept (our choice); Ray's replica names have some twenty."""

WORD = pa.dictionary(pa.int16(), pa.string())
"""Arrow type of such a column."""
WIDE_WORD = pa.dictionary(pa.int32(), pa.string())
"""Arrow type that also takes what another program wrote without a bound."""


class BoundedWords:
    """The words of one column as they come in, each with the one that stands for it."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}

    def kept(self, word: str | None) -> str | None:
        """The word on one line; `OTHER_WORD` once `MOST_WORDS` different ones are known."""
        if word is None:
            return None
        start = word[: 4 * WORD_LETTERS]
        if start not in self._kept:
            if len(self._kept) >= MOST_WORDS:
                return OTHER_WORD
            self._kept[start] = one_line(start, WORD_LETTERS)
        return self._kept[start]


def with_words(schema: pa.Schema, kind: pa.DataType) -> pa.Schema:
    """The schema with another type for its words."""
    fields = [field.with_type(kind) if pa.types.is_dictionary(field.type) else field for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def narrowed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in the types of `schema`; its words may be strings or in wider dictionaries."""
    fields = [schema.field(name) for name in table.column_names]
    columns = [
        folded(column) if pa.types.is_dictionary(field.type) else column
        for field, column in zip(fields, table.columns, strict=True)
    ]
    return pa.table(columns, schema=pa.schema(fields, metadata=schema.metadata))


def folded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column, of strings or a dictionary of them, as `WORD`; after `MOST_WORDS` comes `OTHER_WORD`.

    Raises ArrowInvalid for words that are no text.
    """
    if not pa.types.is_dictionary(column.type) or any(each.dictionary.null_count for each in column.chunks):
        column = column.cast(pa.string()).dictionary_encode()
    # Dictionaries of few words each may have small indexes, which do not count the words of all chunks.
    wide = [
        pa.DictionaryArray.from_arrays(each.indices.cast(pa.int32()), each.dictionary.cast(pa.string()))
        for each in column.chunks
    ]
    chunks = pa.chunked_array(wide, pa.dictionary(pa.int32(), pa.string())).unify_dictionaries().chunks
    if not chunks:
        return pa.chunked_array([], WORD)
    every = chunks[0].dictionary
    every.validate(full=True)
    words, other = every[:MOST_WORDS].to_pylist(), 0
    if len(every) > MOST_WORDS:
        words += [] if OTHER_WORD in words else [OTHER_WORD]  # after a first fold it is among the first
        other = words.index(OTHER_WORD)
    kept = pa.array(words, pa.string())
    places = [pc.if_else(pc.less(chunk.indices, MOST_WORDS), chunk.indices, other) for chunk in chunks]
    arrays = [pa.DictionaryArray.from_arrays(place.cast(pa.int16()), kept) for place in places]
    return pa.chunked_array(arrays, WORD)
