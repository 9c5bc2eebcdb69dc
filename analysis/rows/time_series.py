"""Samples of once a second during a run: of the engines by their own count, of the load actors, of the power.

Seconds are those of the run's clock, milliseconds are real.
"""

from pathlib import Path

import pyarrow as pa

from analysis.rows import parquet

SCHEMA_VERSION = 1

SERVER = parquet.described("timeseries", SCHEMA_VERSION)
"""Arrow schema of timeseries.parquet: one row per replica and second; a figure that a server does not report
is null."""

CLIENTS = parquet.described("clients", SCHEMA_VERSION)
"""Arrow schema of clients.parquet: one row per load actor and second."""


POWER = parquet.described("power", SCHEMA_VERSION)
"""Arrow schema of power.parquet: one row per node and sample, about a second apart, or five where a tool must
be asked; there is none where the service uses no GPU, or nothing is known of its nodes."""


def write(series: pa.Table, path: Path) -> None:
    """Write a series as Parquet, sorted by `clock_ns`, complete or not at all (by rename)."""
    parquet.write(series.sort_by("clock_ns"), path)
