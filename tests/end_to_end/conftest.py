"""What tests of commands share: whether any process outlives them."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.ray_session.processes import with_descendants

PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h: orphans among the descendants become children of the caller."""


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails when a process that descends from the test's own outlives it, but of a Ray session here."""
    libc, ours = ctypes.CDLL(None), os.getpid()
    before = {pid for pid, _ in with_descendants({ours})} - {ours}
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0)
    left = {pid for pid, _ in with_descendants({ours}) - with_descendants(before)} - {ours}
    assert [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left] == []
