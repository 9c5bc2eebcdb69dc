"""Durable shards: finished requests appended to an Arrow IPC stream that survives a killed process.

Knows files and the request schema; knows nothing of HTTP. A kill costs at most the rows since the
last flush; Parquet is made once, at the end, by rename.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis import records


class Shard:
    """An append-only Arrow IPC stream of request rows."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("wb")
        self._schema = records.SHARD
        self._writer = pa.ipc.new_stream(self._file, self._schema)
        self._rows: list[Mapping[str, Any]] = []
        # The first conversion imports what pyarrow loads lazily: now, not in the middle of a run.
        pa.RecordBatch.from_pylist([{"seq": 0, "itl_us": [0]}], schema=self._schema)
        self._file.flush()

    def append(self, row: Mapping[str, Any]) -> None:
        """Keep a row until the next flush."""
        self._rows.append(row)

    def flush(self) -> None:
        """Hand the rows kept so far to the operating system."""
        if self._rows:
            self._writer.write(pa.RecordBatch.from_pylist(self._rows, schema=self._schema))
            self._rows = []
        self._file.flush()

    def close(self) -> None:
        """Flush and end the stream."""
        self.flush()
        self._writer.close()
        self._file.close()
