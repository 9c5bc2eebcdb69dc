"""Power of the nodes of a Ray session, in watts; None where no sensor reports it, never 0."""

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.preflight.gpu_facts import ask_amdsmi, file_integer, file_text, kfd_cards
from cluster.ray_session.session import last_line

HWMON, AMDSMI = "hwmon", "amdsmi"
"""Sources: files of the kernel; AMD's Python module, where a virtual machine has no such files."""
GPU_FILES = ("power1_average", "power1_input")
"""Files in microwatts. amdgpu has the first for MI200, the second for MI300, few have both (amdgpu_pm.c)."""
MOST_GPU_WATTS = 4000.0
"""A larger reading is dropped: below the 4295 W that the amdgpu of Linux 6.6 wrote for an error, its code in
32 bits without a sign (our choice)."""
MOST_NODE_WATTS = 100_000.0
METER = "power_meter"
"""Name of the hwmon device of Linux's driver acpi_power_meter, which measures the whole machine."""
SOCKET_POWER = ("socket_power", "current_socket_power", "average_socket_power")
"""Keys of `amdsmi_get_power_info` in watts, newest first."""


@dataclass(frozen=True, slots=True)
class PowerReading:
    """Watts of one node: of each GPU that it may use, and of the whole machine by its own meter.

    `source` reported the GPUs; `error` is the reason if none did.
    """

    gpu_watts: tuple[float | None, ...] = ()
    node_watts: float | None = None
    source: str | None = None
    error: str | None = None


def read_power(root: Path) -> PowerReading:
    """The power of this node now; `root` is the root of the file system."""
    # Further partitions of one GPU are cards without sensors: the first partition reports the whole GPU.
    cards = [card for card in kfd_cards(root) if (card / "hwmon").is_dir()]
    node_watts = _meter_watts(root, len(cards))
    watts, source = tuple(map(_card_watts, cards)), HWMON
    if not any(watts):
        watts, source = ask_amdsmi(_amdsmi_watts), AMDSMI
    if not any(watts):
        error = f"neither {HWMON} nor {AMDSMI} reports the power of a GPU"
        return PowerReading(node_watts=node_watts, error=error)
    return PowerReading(watts, node_watts, source)


def _amdsmi_watts(amdsmi: Any, gpu: Any) -> float | None:
    power = amdsmi.amdsmi_get_power_info(gpu)
    readings = (_plausible(power.get(name), MOST_GPU_WATTS) for name in SOCKET_POWER)
    return next((watts for watts in readings if watts), None)


def _card_watts(card: Path) -> float | None:
    """Watts of a GPU. Its second die reports 0 or nothing, because the first reports both."""
    files = (file for name in GPU_FILES for file in sorted(card.glob(f"hwmon/hwmon*/{name}")))
    return next((watts for file in files if (watts := _file_watts(file, MOST_GPU_WATTS))), None)


def _meter_watts(root: Path, cards: int) -> float | None:
    """Watts of the machine; None if this node is only a part of it, such as a pod with some of its GPUs."""
    if not cards or len(list(root.glob("sys/class/drm/renderD*/device/hwmon"))) > cards:
        return None
    for name in sorted(root.glob("sys/class/hwmon/hwmon*/name")):
        if file_text(name) == METER:
            return _file_watts(name.parent / "power1_average", MOST_NODE_WATTS)
    return None


def _file_watts(file: Path, most: float) -> float | None:
    microwatts = file_integer(file)
    return None if microwatts is None else _plausible(microwatts / 1e6, most)


def _plausible(watts: Any, most: float) -> float | None:
    """A positive reading below `most`; None for any other, and for amdsmi's "N/A"."""
    return float(watts) if isinstance(watts, int | float) and 0 < watts < most else None


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
