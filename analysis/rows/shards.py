"""The shards of a run, which are written row by row while it lasts: their names, schemas and tables."""

import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from analysis.rows import records, time_series

FOLDER = "shards"
UNREADABLE = "unreadable-"
"""Prefix of a file that was kept aside because not all of it can be read."""
KINDS = (
    (re.compile(r"client-\d+\.arrow"), records.SHARD),
    (re.compile(r"driver-\d+\.arrow"), records.PROGRESS),
    (re.compile(r"client-\d+\.health\.arrow"), time_series.CLIENTS),
    (re.compile(r"server.*\.arrow"), time_series.SERVER),
    (re.compile(r"power.*\.arrow"), time_series.POWER),
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
