"""The file that `--out` names: an answer's table as Parquet or CSV, or all of it as JSON, by the suffix."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from analysis.rows import parquet
from loadgen.run.run_folder import finite

TABLES = (".parquet", ".csv")
SUFFIXES = (*TABLES, ".json")


def write(out: Path, table: pa.Table, whole: Mapping[str, Any]) -> None:
    """Write `table`, or `whole` as JSON, complete or not at all. Raises ValueError for another suffix.

    In CSV what is unknown is empty and what is infinite `inf`; in JSON null and "inf".
    """
    if out.suffix not in SUFFIXES:
        raise ValueError(f"{out}: must end in one of {', '.join(SUFFIXES)}")
    if out.suffix == ".parquet":
        return parquet.write(table, out)
    part = out.with_name(out.name + ".tmp")
    try:
        if out.suffix == ".csv":
            pyarrow.csv.write_csv(_known(table), part, pyarrow.csv.WriteOptions(quoting_style="needed"))
        else:
            part.write_text(json.dumps(finite(dict(whole)), indent=1, default=str), encoding="utf-8")
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def _known(table: pa.Table) -> pa.Table:
    """The table with null in place of NaN, which CSV would write as a word."""
    for index, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            column = table.column(index)
            table = table.set_column(index, field, pc.if_else(pc.is_nan(column), None, column))
    return table
