"""A bad cable: carries a host's frames between two TAP devices, late and with losses, as netem would.

It runs as this file alone, without packages: HOST_PID SWITCH_PID NUMBER ADDRESS DELAY_S JITTER_S LOSS. The
host keeps its address on the new device, so that no connection notices the change; both devices end with
this process.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time
from pathlib import Path

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
MOST_BYTES = 2048


def tap(pid: int, name: str) -> int:
    """A TAP device in the network of a process; whoever opens it has to be there."""
    with Path(f"/proc/{pid}/ns/net").open() as network:
        if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def ip(pid: int, *words: str) -> None:
    """Change the network of a process."""
    subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", "ip", *words], check=True)


def carry(host: int, switch: int, delay_s: float, jitter_s: float, loss: float) -> None:
    """Carry frames for ever: each may be lost, and each that the host sends is late by its own time."""
    waiting: list[tuple[float, int, bytes]] = []
    while True:
        wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for device in select.select([host, switch], [], [], wait_s)[0]:
            frame = os.read(device, MOST_BYTES)
            late_s = max(0.0, delay_s + random.uniform(-jitter_s, jitter_s)) if device == host else 0.0
            if random.random() >= loss:
                to = switch if device == host else host
                heapq.heappush(waiting, (time.monotonic() + late_s, to, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, device, frame = heapq.heappop(waiting)
            os.write(device, frame)


def main() -> None:
    host_pid, switch_pid, number = map(int, sys.argv[1:4])
    host, switch = tap(host_pid, "path"), tap(switch_pid, f"p{number}")
    ip(switch_pid, "link", "set", f"p{number}", "master", "data", "up")
    ip(host_pid, "address", "add", sys.argv[4], "dev", "path")
    ip(host_pid, "link", "set", "path", "up")
    ip(host_pid, "link", "set", "eth0", "down")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    carry(host, switch, *map(float, sys.argv[5:]))


if __name__ == "__main__":
    main()
