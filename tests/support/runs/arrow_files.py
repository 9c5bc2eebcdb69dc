"""Rows as a stream on disk."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analysis.capacity.rules import Facts, WindowEvidence
from analysis.capacity.window_counts import Window
from conf.specs.experiment import Slo
from loadgen.fleet.arrow_stream import ArrowStream


class Disk(io.FileIO):
    """A file on a disk with so many bytes of room; a write takes what fits, the next one fails."""

    room_bytes = 1 << 30
    moves = 0
    refused = 0

    def write(self, data: Any) -> int:
        if not self.room_bytes:
            self.refused += 1
            raise OSError(28, "No space left on device")
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
