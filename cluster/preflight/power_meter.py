"""Reads the power of chosen nodes of a Ray session. A node that is slow or gone delays no other."""

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.preflight.gpu_power import PowerReading, read_power
from cluster.ray_session.session import last_line

ANSWER_S = 0.5
"""Longest wait for readings; later ones are part of the next `read` (our choice)."""
RESTARTS = 3


class NodePower:
    """Reads the power of the node that it runs on."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self) -> PowerReading:
        return read_power(self._root)


class PowerMeter:
    """Reads the power of the nodes `names`: Ray's id of each -> the name in its readings.

    One thread reads while another may follow other nodes.
    """

    def __init__(self, names: Mapping[str, str], root: Path = Path("/")) -> None:
        self._root = root
        self._names: dict[str, str] = {}
        self._actors: dict[str, Any] = {}
        self._pending: dict[str, Any] = {}
        self._lock = threading.Lock()
        """Held for changes of the three dicts, never while readings are awaited."""
        self.follow(names)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(self._names.values())

    def follow(self, names: Mapping[str, str]) -> None:
        """Read these nodes from now on."""
        with self._lock:
            for node in self._actors.keys() - names.keys():
                self._pending.pop(node, None)
                ray.kill(self._actors.pop(node))
            for node in names.keys() - self._actors.keys():
                where = NodeAffinitySchedulingStrategy(node, soft=False)
                actor = ray.remote(num_cpus=0, max_restarts=RESTARTS)(NodePower)
                self._actors[node] = actor.options(scheduling_strategy=where).remote(self._root)
            self._names = dict(names)

    def read(self) -> list[dict[str, Any]]:
        """The readings that arrive within ANSWER_S: the node's name and the fields of `PowerReading`."""
        with self._lock:
            for node, actor in self._actors.items():
                if node not in self._pending:
                    self._pending[node] = actor.read.remote()
            pending, names = dict(self._pending), self._names
        ready, _ = ray.wait(list(pending.values()), num_returns=len(pending), timeout=ANSWER_S)
        answered = {node: answer for node, answer in pending.items() if answer in ready}
        with self._lock:
            for node, answer in answered.items():
                if self._pending.get(node) is answer:
                    del self._pending[node]
        return [{"node": names[node], **asdict(_reading(answer))} for node, answer in answered.items()]

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
