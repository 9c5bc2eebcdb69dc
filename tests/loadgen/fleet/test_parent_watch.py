"""loadgen/fleet/parent_watch.py: a process learns at once that another one on its machine has died."""

import asyncio
import dataclasses
import os
import subprocess
import sys

import pytest

from loadgen.fleet.parent_watch import WatchedProcess, own, watch
from tests.support.machine.patience import PATIENCE_S


async def ended_within(other: WatchedProcess, kill: subprocess.Popen[bytes] | None = None) -> bool:
    gone = asyncio.Event()
    assert watch(other, gone.set)
    if kill is not None:
        await asyncio.sleep(0.05)
        assert not gone.is_set()
        kill.kill()
    await asyncio.wait_for(gone.wait(), PATIENCE_S)
    return True


def test_a_death_is_told_once_it_happens_and_not_before() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = dataclasses.replace(own(), pid=child.pid)
    assert asyncio.run(ended_within(other, child))
    child.wait()
    assert asyncio.run(ended_within(other)), "one that is dead already is told too"


def test_a_process_elsewhere_cannot_be_watched() -> None:
    assert own().pid == os.getpid()
    for where in (("another boot", own().where[1]), ("", "")):
        assert not watch(WatchedProcess(1, where), lambda: pytest.fail("nothing died"))
