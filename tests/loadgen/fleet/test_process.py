"""loadgen/fleet/process.py: the streams that fit into a process, and the death of another one."""

import asyncio
import dataclasses
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from loadgen.fleet import process
from loadgen.fleet.process import NO_LIMIT, SPARE_FILES, Limits, WatchedProcess
from tests.support.machine.patience import PATIENCE_S

ROOM = Limits(soft_files=20_000, hard_files=20_000, open_files=36, ports=28_232)


@pytest.mark.parametrize(
    ("found", "endpoints", "sharing", "most"),
    [
        (ROOM, 1, 1, 20_000 - 36 - SPARE_FILES),
        (replace(ROOM, soft_files=1024), 8, 1, 1024 - 36 - SPARE_FILES),
        (replace(ROOM, soft_files=NO_LIMIT), 1, 1, 28_232),
        (replace(ROOM, soft_files=NO_LIMIT), 2, 1, 56_464),
        (replace(ROOM, soft_files=NO_LIMIT), 2, 4, 14_116),
        (replace(ROOM, soft_files=90), 1, 1, 0),
    ],
)
def test_the_smaller_limit_counts(found: Limits, endpoints: int, sharing: int, most: int) -> None:
    assert found.shortage(endpoints, most, sharing) is None
    assert str(most) in str(found.shortage(endpoints, most + 1, sharing))


def test_a_shortage_names_the_limit_and_the_remedy_in_one_line() -> None:
    files = str(ROOM.shortage(8, 30_000))
    assert "19900 of 30000" in files and "`ulimit -n`" in files and "20000" in files and "actors" in files
    ports = str(replace(ROOM, soft_files=NO_LIMIT).shortage(1, 30_000, sharing=2))
    assert "14116 of 30000" in ports and "net.ipv4.ip_local_port_range" in ports and "target.urls" in ports
    assert "shared by 2" in ports
    assert "\n" not in files + ports


def test_the_soft_limit_is_lifted_to_the_hard_one_and_open_files_are_counted() -> None:
    story = """
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
from loadgen.fleet import process
before = process.limits()
process.raise_files()
kept = [socket.socket() for _ in range(150)]
after = process.limits()
print(before.soft_files, before.hard_files, after.soft_files, after.open_files - before.open_files)
"""
    told = subprocess.run([sys.executable, "-c", story], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["100", "300", "300", "150"]


def test_what_the_machine_does_not_tell_is_no_limit(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(process, "PORT_RANGE", tmp_path / "absent")
    assert process.limits().ports == NO_LIMIT
    (tmp_path / "range").write_text("32768\t60999\n")
    monkeypatch.setattr(process, "PORT_RANGE", tmp_path / "range")
    assert process.limits().ports == 28_232


async def ended_within(other: WatchedProcess, kill: subprocess.Popen[bytes] | None = None) -> bool:
    gone = asyncio.Event()
    assert other.watch(gone.set)
    if kill is not None:
        await asyncio.sleep(0.05)
        assert not gone.is_set()
        kill.kill()
    await asyncio.wait_for(gone.wait(), PATIENCE_S)
    return True


def test_a_death_is_told_once_it_happens_and_not_before() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = dataclasses.replace(WatchedProcess.own(), pid=child.pid)
    assert asyncio.run(ended_within(other, child))
    child.wait()
    assert asyncio.run(ended_within(other)), "one that is dead already is told too"


def test_a_process_elsewhere_cannot_be_watched() -> None:
    assert WatchedProcess.own().pid == os.getpid()
    for where in (("another boot", WatchedProcess.own().where[1]), ("", "")):
        assert not WatchedProcess(1, where).watch(lambda: pytest.fail("nothing died"))
