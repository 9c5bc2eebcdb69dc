"""One cluster of hosts for all tests of this folder, started from the files that `cluster render` writes."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from conf import load
from tests.hosts.machine import CLOCK
from tests.hosts.network import DATA, NOT_HERE, ROOT, Host, Network, allowed
from tests.hosts.units import read_environment, read_unit
from tests.support.machine.patience import START_S, until
from tests.support.virtual.virtual_drivers import engines

collect_ignore = [] if find_spec("vllm") else ["test_vllm.py"]
BIN = Path(sys.executable).parent
CLOCK_FOLDER = Path(__file__).parent / "clock"
NODES = {11: "node1", 12: "node2"}
LOADS = {21: "load1", 22: "load2"}
CLUSTER = ("cluster=mi325x_4n", "cluster.nodes=2", "fleet.actors=2", "fleet.cpus_per_actor=0.5")
CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
SMALL = {
    # Ray would take a third of the machine's memory for the object store of each host.
    "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(80 * 2**20),
    # Machine code of the engine is compiled once, and not by each replica.
    "XDG_CACHE_HOME": CACHE,
}
AHEAD_S = {"load2": 3.0}
"""Seconds by which a host's wall clock is ahead from its start."""
STARTED = "Ray runtime started"
"""What `ray start` prints when its node is one of the cluster's."""
ALIVE = "[node['NodeManagerAddress'] for node in ray.nodes() if node['Alive']]"
RUNS = "out=/tmp/runs"
"""On the disk of the host whose process writes there."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster of hosts: head, serving nodes, load hosts; `units` are the rendered files."""

    network: Network
    units: Path
    token: str

    def host(self, name: str) -> Host:
        return next(host for host in reversed(self.network.hosts) if host.name == name)

    def environment(self) -> dict[str, str]:
        """The environment of a user's commands, as the runbook sets it."""
        here = {"HOME": "/tmp/home", "PATH": f"{BIN}:/usr/bin:/bin", "XDG_CACHE_HOME": CACHE}
        address = {"RAY_ADDRESS": f"{self.host('head').address}:6379"}
        return read_environment(self.units / "ray.env") | here | address

    def start(self, role: str, hosts: Mapping[int, str]) -> None:
        """Switch on hosts by their number, and wait until their units have started Ray.

        Ray gives a node 30 s to start: on a busy machine two at a time are enough.
        """
        for host in [self._begin_host(name, number, role) for number, name in hosts.items()]:
            log = host.disk / "unit.log"
            started = lambda log=log: log.exists() and STARTED in log.read_text()  # noqa: E731
            until(started, f"Ray never started on {host.name}", START_S)

    def _begin_host(self, name: str, number: int, role: str) -> Host:
        unit = read_unit(self.units / f"maxqps-{role}@.service", f"{DATA}.{number}")
        clock = {"PYTHONPATH": str(CLOCK_FOLDER), "MAXQPS_TEST_CLOCK": str(CLOCK)}
        service = unit.service(read_environment(self.units / "ray.env"), SMALL | clock)
        host = self.network.add(name, number, service, self._etc())
        host.step_clock(AHEAD_S.get(name, 0.0))
        return host

    def await_ray_again(self, name: str) -> None:
        """Wait until the node of a host counts for Ray, which may have given it up and begun it anew."""
        address = self.host(name).address
        alive = f"import ray; ray.init('auto', log_to_driver=False); print({ALIVE})"
        until(lambda: address in self.run("python", "-c", alive).stdout, f"{name} is no node", START_S)

    def _etc(self) -> dict[str, str]:
        """The token, and a resolver that knows no name."""
        unknown = {"hosts": "", "resolv.conf": "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"}
        return {"maxqps/auth_token": self.token, **unknown}

    def begin(self, *words: str, on: str = "head") -> "subprocess.Popen[str]":
        """A command of this package on a host."""
        return subprocess.Popen(
            self.host(on).words(words),
            env=self.environment(),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, on: str = "head") -> "subprocess.CompletedProcess[str]":
        """The same, to its end."""
        process = self.begin(*words, on=on)
        said, _ = process.communicate(timeout=START_S)
        return subprocess.CompletedProcess(words, process.returncode, said, "")


def compile_engine() -> None:
    """Compile the engine into the cache: a replica that compiles answers no health check meanwhile."""
    service = engines(load(["engine=simulated"]))
    service.submit(0, 0.0, 256, 16)
    service.advance(10.0)


@contextmanager
def running(
    units: Path, render: Sequence[str], nodes: Mapping[int, str], loads: Mapping[int, str]
) -> Iterator[Cluster]:
    """A head with these serving nodes and load hosts, by their numbers; `units` gets the rendered files."""
    if not allowed():
        pytest.skip(NOT_HERE)
    where = ("--hosts", ",".join(addresses(nodes, loads)), "--venv", str(BIN.parent), "--out", str(units))
    command = [sys.executable, "-m", "cluster", "render", "systemd", *render, "--gpu-node-cpus=1", *where]
    subprocess.run(command, cwd=ROOT, check=True)
    with Network() as network:
        made = Cluster(network, units, secrets.token_hex(32))
        for role, hosts in (("head", {1: "head"}), ("gpu", nodes), ("load", loads)):
            made.start(role, hosts)
        yield made


def addresses(nodes: Mapping[int, str], loads: Mapping[int, str]) -> list[str]:
    """Of the head and these hosts, on the network of the data."""
    return [f"{DATA}.{number}" for number in (1, *nodes, *loads)]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Five hosts: a head, two serving nodes, two load hosts."""
    compile_engine()
    render = (*CLUSTER, "engine=simulated", "--load-nodes=2")
    with running(tmp_path_factory.mktemp("units"), render, NODES, LOADS) as made:
        yield made
