"""Durable shards: finished requests appended to an Arrow IPC stream that survives a killed process.

Knows files and the request schema; knows nothing of HTTP. A kill costs at most the rows since the
last flush, a full disk no row as long as it does not last; Parquet is made once, at the end, by rename.
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
        self._file = path.open("wb", buffering=0)
        self._schema = records.SHARD
        self._rows: list[Mapping[str, Any]] = []
        self._whole_bytes = 0
        self._write(self._schema.serialize())
        # The first conversion imports what pyarrow loads lazily: now, not in the middle of a run.
        pa.RecordBatch.from_pylist([{"seq": 0, "itl_us": [0]}], schema=self._schema)

    def append(self, row: Mapping[str, Any]) -> None:
        """Keep a row until the next flush."""
        self._rows.append(row)

    def flush(self) -> None:
        """Hand the rows kept so far to the operating system.

        Raises OSError if it does not take them; they are kept, and the next flush writes them once.
        """
        if self._rows:
            self._write(pa.RecordBatch.from_pylist(self._rows, schema=self._schema).serialize())
            self._rows = []

    def close(self) -> None:
        """Flush and close the file, which is closed even if the flush fails. Its end ends the stream."""
        try:
            self.flush()
        finally:
            self._file.close()

    def _write(self, message: pa.Buffer) -> None:
        """Append one whole message, in the place of what a failed attempt may have left there."""
        self._file.truncate(self._whole_bytes)
        self._file.seek(self._whole_bytes)
        rest = memoryview(message)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._whole_bytes += message.size
