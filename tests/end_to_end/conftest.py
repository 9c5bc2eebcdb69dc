"""What tests of commands share: a Ray session that stands, and a look for processes that are left."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster.ray_session.own_machine import with_descendants

if TYPE_CHECKING:
    from cluster.ray_session.session import Session

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


@pytest.fixture
def on_standing(standing: "Session", monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in this process deploy in the session that stands."""
    monkeypatch.setattr("loadgen.cli.deployment.open_session", lambda *_, **__: nullcontext(standing))
