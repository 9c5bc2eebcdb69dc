"""Hosts on this machine: a set of namespaces for each, two bridges between them, and cables to be cut.

Each host has its own network, name, processes, mounts (disk, /dev/shm, /etc) and monotonic clock. Nothing is
made in the root namespaces: everything ends with the hosts' first processes, and these with this process.
"""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.hosts import bad_path, machine

ROOT = Path(__file__).parents[2]
DATA, OTHER = "10.88.0", "10.89.0"
"""The network of the data, and a second one on every host, which has the default route."""
GONE_WITH_US = ["setpriv", "--pdeathsig", "KILL"]
NOT_HERE = "hosts are namespaces: they need Linux and root"


def allowed() -> bool:
    """True where hosts can be made."""
    return sys.platform == "linux" and os.geteuid() == 0


@dataclass(slots=True)
class Host:
    """One running host; `number` ends its addresses, `pid` is its first process, seen from here."""

    name: str
    number: int
    pid: int
    process: subprocess.Popen[str]
    switch: int

    @property
    def address(self) -> str:
        return f"{DATA}.{self.number}"

    @property
    def disk(self) -> Path:
        """Its /tmp, seen from here."""
        return Path(f"/proc/{self.pid}/root/tmp")

    def path(self, path: str) -> Path:
        """A path of the host, seen from here."""
        return Path(f"/proc/{self.pid}/root{path}")

    def words(self, words: Sequence[str]) -> list[str]:
        """The words that run a command on this host."""
        return ["nsenter", "--all", f"--target={self.pid}", *words]

    def cut(self) -> None:
        """Pull its cables."""
        self._cables("down")

    def plug(self) -> None:
        """Put its cables back."""
        self._cables("up")

    @contextmanager
    def bad_path(self, delay_s: float, jitter_s: float, loss: float) -> Iterator[None]:
        """Its data goes by a cable that loses frames, and delays those that the host sends."""
        words = (self.pid, self.switch, self.number, f"{self.address}/24", delay_s, jitter_s, loss)
        command = [*GONE_WITH_US, sys.executable, "-S", "-E", bad_path.__file__, *map(str, words)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout and process.stdout.readline() == "ready\n"
            try:
                yield
            finally:
                in_net(self.pid, "ip", "link", "set", "eth0", "up")
                process.kill()

    def step_clock(self, ahead_s: float) -> None:
        """Set its wall clock, as Python reads it, so far ahead."""
        with self.path(str(machine.CLOCK)).open("r+b") as file:
            file.write(struct.pack("q", int(ahead_s * 1e9)))

    def _cables(self, state: str) -> None:
        for cable in ("d", "o"):
            in_net(self.switch, "ip", "link", "set", f"{cable}{self.number}", state)

    def power_off(self) -> None:
        """End every process of the host at once."""
        self.process.kill()
        self.process.wait()


@dataclass(slots=True)
class Network:
    """The bridges, and the hosts at them. A context: nothing outlasts its block."""

    hosts: list[Host] = field(default_factory=list)
    _switch: Any = None

    def __enter__(self) -> Self:
        self._switch = subprocess.Popen([*GONE_WITH_US, "unshare", "--net", "sleep", "infinity"])
        root = Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{self._switch.pid}/ns/net").readlink() == root:
            assert self._switch.poll() is None
        for bridge in ("data", "other"):
            self._ip("link", "add", bridge, "type", "bridge")
            self._ip("link", "set", bridge, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.process.kill()
        self._switch.kill()
        for process in (*(host.process for host in self.hosts), self._switch):
            process.wait()

    def add(self, name: str, number: int, unit: dict[str, Any], etc: dict[str, str]) -> Host:
        """Switch on a host with one unit; of the caller's files below /tmp it sees those of this checkout."""
        facts = {
            "name": name,
            "disk_bytes": 512 * 2**20,
            "shm_bytes": 384 * 2**20,
            "kept": str(ROOT),
            "etc": etc,
            "unit": unit,
        }
        own = ["--mount", "--uts", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        # Each host has started at another time, as real ones have.
        own += ["--time", "--monotonic", str(1000 * number)]
        words = [sys.executable, "-S", "-E", machine.__file__, json.dumps(facts)]
        process = subprocess.Popen(
            [*GONE_WITH_US, "unshare", *own, *words], stdout=subprocess.PIPE, text=True, cwd="/"
        )
        assert process.stdout and process.stdout.readline() == "ready\n", f"{name} did not start"
        child = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
        host = Host(name, number, int(child), process, self._switch.pid)
        self.hosts.append(host)
        self._connect(host)
        host.path(str(machine.GO)).touch()
        return host

    def _connect(self, host: Host) -> None:
        for cable, bridge, device, network in (("d", "data", "eth0", DATA), ("o", "other", "eth1", OTHER)):
            end = f"{cable}{host.number}"
            self._ip("link", "add", end, "type", "veth", "peer", "name", device, "netns", str(host.pid))
            self._ip("link", "set", end, "master", bridge, "up")
            in_net(host.pid, "ip", "address", "add", f"{network}.{host.number}/24", "dev", device)
            in_net(host.pid, "ip", "link", "set", device, "up")
        in_net(host.pid, "ip", "link", "set", "lo", "up")
        in_net(host.pid, "ip", "route", "add", "default", "via", f"{OTHER}.254")

    def _ip(self, *words: str) -> None:
        in_net(self._switch.pid, "ip", *words)


def in_net(pid: int, *words: str) -> None:
    """Run a command in the network of a process."""
    subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", *words], check=True)
