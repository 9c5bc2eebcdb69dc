"""Arrow schemas whose columns carry their unit and meaning; knows no column by its name."""

from collections.abc import Iterable, Mapping

import pyarrow as pa

Column = tuple[str, pa.DataType, str, str]
"""Name, type, unit (may be empty) and meaning."""


def schema(columns: Iterable[Column], metadata: Mapping[str, str] | None = None) -> pa.Schema:
    """The schema of `columns`, with unit and meaning in each field's metadata."""
    fields = [
        pa.field(name, type_, metadata={"unit": unit, "doc": doc} if unit else {"doc": doc})
        for name, type_, unit, doc in columns
    ]
    return pa.schema(fields, metadata=metadata)
