"""Takes rows of tables in any order, in pieces: an Arrow list counts its elements in 31 bits.

Arrow's own `take` joins all chunks of a list into one, which fails beyond 2^31 elements, 4 h of 1000
answers of 140 tokens a second.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MOST_ROWS = 32_768
"""Rows of a piece, as many as a row group of Parquet has: 18 MB of the gaps of answers of 140 tokens."""
MOST_ELEMENTS = 2**26
"""Elements of the lists of a piece: where answers are long it has fewer rows (our choice)."""

Ints = npt.NDArray[np.int64]


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
    found = np.zeros(sum(len(batch) for batch in batches), np.int64)
    for name in [field.name for field in schema if pa.types.is_list(field.type)]:
        lengths = [pc.fill_null(pc.list_value_length(batch[name]), 0) for batch in batches]
        found += np.concatenate([np.zeros(0, np.int64), *lengths])
    return found


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
