"""Opens a run folder, also of a run that was killed; knows file names and columns, not what they prove."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis import records, series
from conf import Experiment, load

REQUEST_SHARD = re.compile(r"client-\d+\.arrow")
HEALTH_SHARDS = "client-*.health.arrow"
SERVER_SHARDS = "server*.arrow"
DRIVER_SHARDS = "driver-*.arrow"


class RunError(ValueError):
    """The folder is not a run, or a file in it is broken; one line."""


def refuse_out(out: Path | None) -> None:
    """Raise RunError for an `--out` file that would replace another or could not be written."""
    if out is None:
        return
    if out.exists():
        raise RunError(f"{out} exists; choose another --out or remove it")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise RunError(f"cannot write to {out.parent}; choose another --out")


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder. Tables are read when asked for; `sweep` is None for a run that did not end.

    Raises RunError for a file of requests, dwells or events that is missing or broken.
    """

    path: Path
    manifest: dict[str, Any]
    sweep: dict[str, Any] | None

    @property
    def config(self) -> Experiment:
        """What was asked."""
        return load(base=self.path / "config.yaml")

    def requests(self) -> pa.Table:
        """Every planned request, one row each, in order of due time."""
        with _readable(self.path):
            return gather(self.path)

    def clients(self) -> pa.Table:
        """The load actors' own health: one row per actor and second (schema `series.CLIENTS`)."""
        return gather_series(self.path, "clients.parquet", HEALTH_SHARDS, series.CLIENTS, "client_id")

    def timeseries(self) -> pa.Table:
        """The servers' own figures: one row per replica and second (schema `series.SERVER`)."""
        return gather_series(self.path, "timeseries.parquet", SERVER_SHARDS, series.SERVER, "replica")

    def dwells(self) -> pa.Table:
        """One row per ramp step and dwell; empty for a run that did not end."""
        path = self.path / "dwells.parquet"
        with _readable(self.path):
            return pq.read_table(path) if path.exists() else pa.table({})

    def events(self) -> list[dict[str, Any]]:
        """Every decision in order; a line cut by a kill is left out."""
        events = []
        with _readable(self.path):
            lines = (self.path / "events.jsonl").read_bytes().splitlines()
        for line in lines:
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
        return events


def load_run(path: Path | str) -> Run:
    """Open the run folder at `path`. Raises RunError if it is none."""
    path = Path(path)
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        ended = path / "sweep.json"
        sweep = json.loads(ended.read_text()) if ended.exists() else None
    except FileNotFoundError as error:
        raise RunError(f"{path} is not a run folder: it has no {Path(error.filename).name}") from error
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is not a readable run folder: {error}") from error
    return Run(path, manifest, sweep)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise RunError with one line where a file of the folder cannot be read."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} holds a file that cannot be read: {' '.join(str(error).split())}") from error


def gather(path: Path, wall_start_ns: int | None = None, time_scale: float = 1.0) -> pa.Table:
    """Parquet, shards and saved plans of a run as one row per planned request, by due time.

    Of several records of one request the first counts: that of the Parquet (which shards may outlive, for
    they go after it is written), of the load actor, of what the driver was told by an actor whose shard is
    out of reach. A planned request without any is `lost`: its load actor died with it.
    """
    files = sorted((path / "shards").glob("*.arrow"))
    shards = [records.read_shard(file) for file in files if is_request_shard(file)]
    told = [records.read_told(file) for file in files if file.match(DRIVER_SHARDS)]
    rows = once(pa.concat_tables([records.read(path / "requests"), *shards, *told]), "seq")
    tables = [rows]
    for file in sorted((path / "schedule").glob("*.parquet")):
        plan = pq.read_table(file, schema=records.PLAN)
        missing = ~np.isin(plan["seq"].to_numpy(), rows["seq"].to_numpy())
        lost = records.lost(plan.filter(pa.array(missing)), wall_start_ns, time_scale)
        tables.append(lost.cast(records.REQUESTS))
    return pa.concat_tables(tables).sort_by("due_ns")


def gather_series(path: Path, file: str, pattern: str, schema: pa.Schema, source: str) -> pa.Table:
    """A series of an ended run (`file`) and what its shards (`pattern`) of a killed session add.

    A row is known by its `source` (a column) and its time.
    """
    ended = [pq.read_table(path / file, schema=schema)] if (path / file).exists() else []
    shards = [records.read_stream(shard, schema) for shard in sorted((path / "shards").glob(pattern))]
    return once(pa.concat_tables([schema.empty_table(), *ended, *shards]), source, "clock_ns")


def once(table: pa.Table, *keys: str) -> pa.Table:
    """The first row of each key, in their order."""
    numbered = table.select(keys).append_column("row", pa.array(np.arange(table.num_rows)))
    first = numbered.group_by(keys).aggregate([("row", "min")])["row_min"].to_numpy()
    return table if len(first) == table.num_rows else table.take(pa.array(np.sort(first)))


def is_request_shard(path: Path) -> bool:
    """True for the shard of a load actor's requests, not of its health or of the server's metrics."""
    return REQUEST_SHARD.fullmatch(path.name) is not None
