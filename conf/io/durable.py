"""Writes files whole or not at all, so that they survive a power cut.

Every file of a run folder is written by `replacing`: a reader sees the old file or the new one, and a link
that a stranger left there is never followed.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

NO_SYNC = (errno.EINVAL, errno.ENOTSUP)
"""Errors of a file system that cannot sync a folder (some network ones)."""


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which replaces `path` once the disk has its bytes.

    If anything fails, the old file stays and the new one is removed. Raises OSError.
    """
    part = path.with_name(f"{path.name}.tmp")
    part.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all. Raises OSError."""
    with replacing(path) as file:
        file.write(text.encode())


def folder(path: Path) -> None:
    """Make a folder and its parents, which survive a power cut. Raises OSError."""
    if not path.is_dir():
        folder(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names in a folder. Raises OSError."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
    finally:
        os.close(opened)
