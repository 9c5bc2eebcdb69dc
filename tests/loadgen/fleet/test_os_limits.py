"""loadgen/fleet/os_limits.py: how many streams fit into a process, and which limit says no."""

import subprocess
import sys
from dataclasses import replace

import pytest

from loadgen.fleet import os_limits
from loadgen.fleet.os_limits import NO_LIMIT, SPARE_FILES, Limits, shortage, streams

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
    assert streams(found, endpoints, sharing) == most
    assert shortage(found, endpoints, most, sharing) is None
    assert str(most) in str(shortage(found, endpoints, most + 1, sharing))


def test_a_shortage_names_the_limit_and_the_remedy_in_one_line() -> None:
    files = str(shortage(ROOM, 8, 30_000))
    assert "19900 of 30000" in files and "`ulimit -n`" in files and "20000" in files and "actors" in files
    ports = str(shortage(replace(ROOM, soft_files=NO_LIMIT), 1, 30_000, sharing=2))
    assert "14116 of 30000" in ports and "net.ipv4.ip_local_port_range" in ports and "target.urls" in ports
    assert "shared by 2" in ports
    assert "\n" not in files + ports


def test_the_soft_limit_is_lifted_to_the_hard_one_and_open_files_are_counted() -> None:
    story = """
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
from loadgen.fleet import os_limits
before = os_limits.limits()
os_limits.raise_files()
kept = [socket.socket() for _ in range(150)]
after = os_limits.limits()
print(before.soft_files, before.hard_files, after.soft_files, after.open_files - before.open_files)
"""
    told = subprocess.run([sys.executable, "-c", story], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["100", "300", "300", "150"]


def test_what_the_machine_does_not_tell_is_no_limit(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(os_limits, "PORT_RANGE", tmp_path / "absent")
    assert os_limits.limits().ports == NO_LIMIT
    (tmp_path / "range").write_text("32768\t60999\n")
    monkeypatch.setattr(os_limits, "PORT_RANGE", tmp_path / "range")
    assert os_limits.limits().ports == 28_232
