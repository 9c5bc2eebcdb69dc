"""Run folders: what must hold of each, rows as a stream on disk, and a study's folder."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import load_run
from analysis.capacity.rules import Facts, WindowEvidence
from analysis.capacity.window_counts import Window
from analysis.results import studies
from analysis.results.json_border import to_tree
from analysis.rows import records
from conf.specs.experiment import Slo
from loadgen.fleet.arrow_stream import ArrowStream
from tests.support.runs.golden import GOLDEN, sweep_json, unsealed


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


def full(*_: object) -> None:
    """In place of what writes, on a disk without room."""
    raise OSError(28, "No space left on device")


class Disk(io.FileIO):
    """A file on a disk with so many bytes of room; a write takes what fits, the next one fails."""

    room_bytes = 1 << 30
    moves = 0
    refused = 0

    def write(self, data: Any) -> int:
        if not self.room_bytes:
            self.refused += 1
            full()
        written = super().write(bytes(data)[: self.room_bytes]) or 0
        self.room_bytes -= written
        return written

    def truncate(self, size: int | None = None) -> int:
        self.moves += 1
        return super().truncate(size)

    def seek(self, *to: int) -> int:
        self.moves += 1
        return super().seek(*to)


def on_disk(path: Path) -> tuple[ArrowStream, Disk]:
    """A shard whose file is a `Disk`."""
    path.touch()
    disk = Disk(path, "r+")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", lambda *_, **__: disk)
        return ArrowStream(path), disk


def facts(rows: pa.Table) -> Facts:
    """The facts of a window that all these rows are in."""
    window = Window(rows["window_index"][0].as_py(), "window", 1.0, 1, 0, 0, 2**62, 2**62)
    return Facts(rows, window, Slo(ttft_p90_ms=1000.0), WindowEvidence())


def studied(path: Path, kind: str, *names: str, **more: Any) -> Path:
    """A study in `path` whose parts are copies of the golden run."""
    verdicts = {}
    for name in names:
        unsealed(Path(shutil.copytree(GOLDEN, path / name)))
        verdicts[name] = load_run(path / name).verdict
    first = json.loads((path / names[0] / "sweep.json").read_text())
    tree = {"schema_version": 1, "study": kind, "state": "ended", "verb": "sweep", "run_id": path.name}
    tree |= {"folder": f"runs/{path.name}", "experiment": first["experiment"], "names": list(names)}
    tree |= {"clock": "wall", "evidence": f"{len(names)} parts"}
    tree |= {"valid": True, "passed": True, "exit_code": 0, "reason": ""}
    tree["parts"] = [
        to_tree(studies.part_row(name, verdict)) for name, verdict in verdicts.items() if verdict
    ]
    tree["requests"] = to_tree(studies.requests(verdict for verdict in verdicts.values() if verdict))
    (path / "study.json").write_text(json.dumps(tree | more))
    return path
