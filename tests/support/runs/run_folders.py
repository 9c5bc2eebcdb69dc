"""What must hold of every run folder, however the run ended."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from analysis import load_run
from analysis.rows import records


def check_folder(folder: Path) -> dict[str, Any]:
    """Each planned request has one row with a known status; returns sweep.json."""
    run = load_run(folder)
    rows = run.requests()
    planned = sum(pq.read_table(file).num_rows for file in (folder / "schedule").glob("*.parquet"))
    assert rows.num_rows == planned
    assert len(set(rows["seq"].to_pylist())) == planned
    assert set(rows["status"].to_pylist()) <= {records.OK, *records.FAILURES}
    assert run.sweep is not None
    assert run.sweep["requests"]["rows"] == run.sweep["requests"]["planned"] == planned
    assert run.manifest["files"]["sweep.json"]
    assert run.config.workload.name
    return run.sweep
