"""Reads the power of chosen nodes of a Ray session, about once a second if it is asked so often.

`gpu_power` reads. A node that is slow or gone delays no other.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.preflight.gpu_facts import run_tool
from cluster.preflight.gpu_power import KERNEL, PowerReading, read_power
from cluster.ray_session.session import last_line

ANSWER_S = 0.5
"""Longest wait for readings; those that come later are part of the next ones (our choice)."""
TOOL_PERIOD_S = 5.0
"""Least time between two runs of a tool: `amd-smi` is a Python program that takes half a second of a core,
which the engine may want (our choice)."""
RESTARTS = 3


class NodePower:
    """Reads the power of the node that it runs on; tools not more often than each TOOL_PERIOD_S."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._next_s = 0.0

    def read(self) -> PowerReading:
        """The power now, or as soon as a tool may run again."""
        time.sleep(max(0.0, self._next_s - time.monotonic()))
        began_s = time.monotonic()
        reading = read_power(self._root, run_tool)
        self._next_s = 0.0 if reading.source == KERNEL else began_s + TOOL_PERIOD_S
        return reading


class PowerMeter:
    """Reads the power of the nodes `names`: Ray's id of each, and the name that its readings bear."""

    def __init__(self, names: Mapping[str, str], root: Path = Path("/")) -> None:
        self._root = root
        self._names: dict[str, str] = {}
        self._actors: dict[str, Any] = {}
        self._pending: dict[str, Any] = {}
        self.follow(names)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(self._names.values())

    def follow(self, names: Mapping[str, str]) -> None:
        """Read these nodes from now on."""
        for node in self._actors.keys() - names.keys():
            self._pending.pop(node, None)
            ray.kill(self._actors.pop(node))
        for node in names.keys() - self._actors.keys():
            where = NodeAffinitySchedulingStrategy(node, soft=False)
            made = ray.remote(num_cpus=0, max_restarts=RESTARTS)(NodePower)
            self._actors[node] = made.options(scheduling_strategy=where).remote(self._root)
        self._names = dict(names)

    def read(self) -> list[dict[str, Any]]:
        """The readings that are there within ANSWER_S: the node's name and the fields of `PowerReading`."""
        actors = dict(self._actors)  # another thread may follow other nodes meanwhile
        for node, actor in actors.items():
            if node not in self._pending:
                self._pending[node] = actor.read.remote()
        asked = {node: self._pending[node] for node in actors if node in self._pending}
        ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWER_S)
        rows = []
        for node, answer in asked.items():
            if answer in ready:
                self._pending.pop(node, None)
                rows.append({"node": self._names.get(node, node), **asdict(_reading(answer))})
        return rows

    def close(self) -> None:
        """End the actors."""
        with suppress(RayError):
            self.follow({})


def _reading(answer: Any) -> PowerReading:
    try:
        reading: PowerReading = ray.get(answer)
    except RayError as error:
        return PowerReading(error=last_line(error))
    return reading
