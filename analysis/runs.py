"""Opens a run folder, also of a run that was killed; knows file names and columns, not what they prove."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis import records
from conf import Experiment, load


class RunError(ValueError):
    """The folder is not a run, or a file in it is broken; one line."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder. Tables are read when asked for; `sweep` is None for a run that did not end."""

    path: Path
    manifest: dict[str, Any]
    sweep: dict[str, Any] | None

    @property
    def config(self) -> Experiment:
        """What was asked."""
        return load(base=self.path / "config.yaml")

    def requests(self) -> pa.Table:
        """Every planned request, one row each, in order of due time."""
        if any((self.path / "requests").glob("*.parquet")):
            return records.read(self.path / "requests")
        return gather(self.path)

    def dwells(self) -> pa.Table:
        """One row per ramp step and dwell; empty for a run that did not end."""
        path = self.path / "dwells.parquet"
        return pq.read_table(path) if path.exists() else pa.table({})

    def events(self) -> list[dict[str, Any]]:
        """Every decision in order; a line cut by a kill is left out."""
        events = []
        for line in (self.path / "events.jsonl").read_text().splitlines():
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


def gather(path: Path, wall_start_ns: int | None = None) -> pa.Table:
    """Shards and saved plans of an unfinished run as one row per planned request, by due time.

    A planned request without a record is `lost`: its load actor died with it. Of two records of one
    request (there should be none) the first counts.
    """
    shards = [records.read_shard(file) for file in sorted((path / "shards").glob("*.arrow"))]
    rows = pa.concat_tables([records.REQUESTS.empty_table(), *shards])
    _, first = np.unique(rows["seq"].to_numpy(), return_index=True)
    rows = rows.take(pa.array(first))
    for file in sorted((path / "schedule").glob("*.parquet")):
        plan = pq.read_table(file)
        missing = ~np.isin(plan["seq"].to_numpy(), rows["seq"].to_numpy())
        lost = [_lost(row, wall_start_ns) for row in plan.filter(pa.array(missing)).to_pylist()]
        rows = pa.concat_tables([rows, records.table(lost)])
    return rows.sort_by("due_ns")


def _lost(planned: dict[str, Any], wall_start_ns: int | None) -> dict[str, Any]:
    at = None if wall_start_ns is None else (wall_start_ns + planned["due_ns"]) // 1000
    return {**planned, "status": "lost", "error_kind": "no_record", "scheduled_at": at}
