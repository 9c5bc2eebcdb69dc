"""What must hold of every run folder, however the run ended."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from analysis import load_run
from analysis.rows import records
from tests.support.runs.golden import sweep_json


def check_folder(folder: Path) -> dict[str, Any]:
    """Each planned request has one row with a known status; returns sweep.json."""
    run = load_run(folder)
    rows = run.requests()
    planned = sum(pq.read_table(file).num_rows for file in (folder / "schedule").glob("*.parquet"))
    assert rows.num_rows == planned
    assert len(set(rows["seq"].to_pylist())) == planned
    assert set(rows["status"].to_pylist()) <= {records.OK, *records.FAILURES}
    tree = sweep_json(folder)
    assert tree["requests"]["rows"] == tree["requests"]["planned"] == planned
    assert run.manifest["files"]["sweep.json"]
    assert run.config.workload.name
    return tree
