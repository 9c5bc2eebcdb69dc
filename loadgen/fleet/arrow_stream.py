"""Durable shards: rows appended to an Arrow IPC stream that survives a killed process.

A kill costs at most the rows since the last flush, a full disk no row as long as it does not last; Parquet
is made once, at the end, by rename.
"""

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from analysis.rows import records

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of a file system without locks (some network ones, as they are mounted)."""


class ArrowStream:
    """An append-only Arrow IPC stream. Raises BlockingIOError if another writer holds it."""

    def __init__(self, path: Path, schema: pa.Schema = records.SHARD) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        path.touch()
        self._file = path.open("r+b", buffering=0)
        self._made = _which(os.fstat(self._file.fileno()))
        self._kept: list[pa.RecordBatch] = []
        self._whole_bytes = 0
        self._cut = path.stat().st_size > 0
        try:
            lock(self._file)
            self._write(schema.serialize())
        except OSError:
            self._file.close()
            raise

    def append(self, batch: pa.RecordBatch) -> None:
        """Keep rows until the next flush."""
        if batch.num_rows:
            self._kept.append(batch)

    def flush(self) -> None:
        """Write the rows kept so far. Raises OSError if the system does not take them; they stay."""
        while self._kept:
            self._write(self._kept[0].serialize())
            del self._kept[0]

    def close(self) -> None:
        """Flush and close the file, even if the flush fails. EOF marks the end of the stream."""
        try:
            self.flush()
        finally:
            self._file.close()

    def delete(self) -> None:
        """Delete the closed file, unless another one has its name by now: it may be the driver's copy."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as now:
            if _which(os.fstat(now.fileno())) == self._made:
                self.path.unlink()

    def _write(self, message: pa.Buffer) -> None:
        """Append one whole message, in the place of what a failed attempt may have left there."""
        if self._cut:  # only then: on a network file system it is a round trip that the loop waits for
            self._file.truncate(self._whole_bytes)
            self._file.seek(self._whole_bytes)
        self._cut = True
        rest = memoryview(message)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._whole_bytes += message.size
        self._cut = False


def _which(status: os.stat_result) -> tuple[int, int]:
    """Device and number of a file: equal ones are one file."""
    return status.st_dev, status.st_ino


def lock(file: IO[Any]) -> None:
    """Lock an open file until it is closed, if its disk has locks. Raises BlockingIOError."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
