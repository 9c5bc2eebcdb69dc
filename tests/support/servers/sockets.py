"""Addresses on which processes of this machine accept TCP connections."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LISTEN = "0A"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same mapped into IPv6, and ::1, as in /proc/net/tcp."""


def listening(pids: Iterable[int]) -> list[str]:
    """The address (hexadecimal) of every listening socket of these processes."""
    owned = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):  # closed meanwhile
                owned.add(str(link.readlink()))
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    return [
        words[1].partition(":")[0]
        for words in lines
        if words[3] == LISTEN and f"socket:[{words[9]}]" in owned
    ]
