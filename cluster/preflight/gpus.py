"""The GPUs of a node and their power: files of the kernel, AMD's amdsmi, PyTorch. Unread is None, never 0."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from conf.io.one_line import last_line

TOOL_TIMEOUT_S = 15.0
MOST_BYTES = 4 * 2**20
"""Most bytes of a command's output (our choice)."""
IMPORT_TIMEOUT_S = 90.0
DEVICE_PROBE = "import torch as t; t.ones(1, device='cuda').item(); print(t.cuda.device_count())"
KFD_NODES = "sys/class/kfd/kfd/topology/nodes"
KFD_XGMI = 11
"""HSA_IOLINKTYPE_XGMI of the Linux kernel's and ROCm's headers (kfd_crat.h, hsakmttypes.h)."""
MEC_BITS = 0x3FF
"""ROCm's runtime looks at the low ten bits of the firmware's version (HSA_ENGINE_ID.uCode)."""


def run_tool(
    command: list[str], timeout_s: float = TOOL_TIMEOUT_S, env: Mapping[str, str] | None = None
) -> str | None:
    """The output of a command; None if it does not exist, fails, or exceeds the limits of time and size."""
    if shutil.which(command[0]) is None:
        return None
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=None if env is None else dict(env),
            start_new_session=True,  # its child processes end with it
        )
    except OSError:
        return None
    late = Timer(timeout_s, _end, (process,))
    late.start()
    with process:
        output = process.stdout.read(MOST_BYTES + 1) if process.stdout else b""
        if len(output) > MOST_BYTES:
            _end(process)
    late.cancel()
    return output.decode(errors="replace") if process.returncode == 0 else None


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver sees it. `links` are the GPUs that it reaches by XGMI."""

    index: int
    name: str | None = None
    arch: str | None = None
    driver: str | None = None
    vram_used_bytes: float | None = None
    ecc_errors: int | None = None
    mec_firmware: int | None = None
    numa_node: int | None = None
    links: frozenset[int] | None = None
    vram_bytes: float | None = None

    @property
    def kind(self) -> str:
        """Name and architecture, as far as they are known."""
        return f"{self.name or 'GPU'} {self.arch or ''}".strip()


def read_gpus(root: Path) -> tuple[Gpu, ...] | None:
    """AMD's GPUs of this node, from the kernel's tree of compute devices (amdkfd) and their names.

    Empty without AMD's driver; None if there is a driver but its GPUs are hidden from us.
    """
    devices = _kfd_gpus(root)
    if not devices:
        return None if (root / "sys/class/kfd").exists() else ()
    names = ask_amdsmi(lambda amdsmi, gpu: amdsmi.amdsmi_get_gpu_asic_info(gpu)["market_name"])
    if len(names) != len(devices):  # a container shows only some of the GPUs
        names = (None,) * len(devices)
    ranks = {int(folder.name): rank for rank, folder in enumerate(devices)}
    return tuple(_gpu(root, folder, ranks, name) for folder, name in zip(devices, names, strict=True))


def _gpu(root: Path, folder: Path, ranks: Mapping[int, int], name: Any) -> Gpu:
    facts = _properties(folder / "properties")
    links = [_properties(link) for link in sorted(folder.glob("io_links/*/properties"))]
    peers = [ranks.get(link.get("node_to", -1)) for link in links if link.get("type") == KFD_XGMI]
    card, firmware = _card(root, facts), facts.get("fw_version")
    ecc = re.search(r"^ue: *(\d+)", file_text(card / "ras/umc_err_count") or "", re.MULTILINE)
    return Gpu(
        ranks[int(folder.name)],
        name=name if isinstance(name, str) and name != "N/A" else None,
        arch=_gfx(facts.get("gfx_target_version", 0)),
        driver=file_text(root / "sys/module/amdgpu/version"),
        vram_used_bytes=file_integer(card / "mem_info_vram_used"),
        ecc_errors=int(ecc[1]) if ecc else None,
        mec_firmware=None if firmware is None else firmware & MEC_BITS,
        numa_node=file_integer(card / "numa_node"),
        links=frozenset(peer for peer in peers if peer is not None) if links else None,
        vram_bytes=file_integer(card / "mem_info_vram_total"),
    )


def ask_amdsmi(question: Callable[[Any, Any], Any]) -> tuple[Any, ...]:
    """The answer of AMD's Python module for each GPU, None where it fails; empty without the module.

    `question` takes the module and its handle of a GPU. ROCm installs the module; pip does not.
    """
    try:
        amdsmi = import_module("amdsmi")
    except (ImportError, OSError, KeyError):  # the module, or the library that it loads, is not there
        return ()
    try:
        amdsmi.amdsmi_init()
        return tuple(_answer(question, amdsmi, gpu) for gpu in amdsmi.amdsmi_get_processor_handles())
    except amdsmi.AmdSmiException:
        return ()


def _answer(question: Callable[[Any, Any], Any], amdsmi: Any, gpu: Any) -> Any:
    try:
        return question(amdsmi, gpu)
    except (amdsmi.AmdSmiException, KeyError):
        return None


def _kfd_gpus(root: Path) -> list[Path]:
    """The folders of the compute devices that are GPUs, in their order; a container sees only its own."""
    nodes = sorted((root / KFD_NODES).glob("[0-9]*"), key=lambda path: int(path.name))
    return [folder for folder in nodes if _properties(folder / "properties").get("simd_count")]


def _card(root: Path, facts: Mapping[str, int]) -> Path:
    return root / f"sys/class/drm/renderD{facts.get('drm_render_minor', 0)}/device"


def _gfx(version: int) -> str:
    """gfx942 for 90402: major, minor and stepping in two decimal digits each, the last two in hexadecimal."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _properties(path: Path) -> dict[str, int]:
    """The `name number` lines of one properties file; empty if the file cannot be read."""
    try:
        words = [line.split() for line in path.read_text().splitlines()]
    except OSError:  # the kernel hides nodes of devices that the container may not use
        return {}
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].lstrip("-").isdigit()}


def file_text(path: Path) -> str | None:
    """The text of a small file without surrounding space; None if it is empty or cannot be read."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def file_integer(path: Path) -> int | None:
    """The integer in a small file; None if there is none."""
    text = file_text(path)
    return int(text) if text and text.lstrip("-").isdigit() else None


def visible_devices(ids: Collection[str]) -> dict[str, int | None]:
    """Number of GPUs that PyTorch sees if only one of `ids` is visible; None if it fails.

    Each id has a process of its own, which also computes, to find an id that the runtime does not accept.
    """
    with ThreadPoolExecutor() as threads:
        return dict(zip(ids, threads.map(_visible_devices, ids), strict=True))


def _visible_devices(device: str) -> int | None:
    env = {**os.environ, "HIP_VISIBLE_DEVICES": device, "CUDA_VISIBLE_DEVICES": device}
    text = run_tool([sys.executable, "-c", DEVICE_PROBE], IMPORT_TIMEOUT_S, env)
    return int(text.split()[-1]) if text else None


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
    devices = (_card(root, _properties(folder / "properties")) for folder in _kfd_gpus(root))
    cards = [card for card in devices if (card / "hwmon").is_dir()]
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


@dataclass(slots=True)
class _Followed:
    """A node whose power is read: its name in readings, its actor, and the reading that is awaited."""

    name: str
    actor: Any
    pending: Any = None


class PowerMeter:
    """Reads the power of the nodes `names`: Ray's id of each -> the name in its readings.

    One thread reads while another may follow other nodes: each look is at one dict, which is replaced whole.
    """

    def __init__(self, names: Mapping[str, str], root: Path = Path("/")) -> None:
        self._root = root
        self._followed: dict[str, _Followed] = {}
        self.follow(names)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(each.name for each in self._followed.values())

    def follow(self, names: Mapping[str, str]) -> None:
        """Read these nodes from now on."""
        before = self._followed
        self._followed = {node: before.get(node) or self._begun(node, name) for node, name in names.items()}
        for node, name in names.items():
            self._followed[node].name = name
        for node in before.keys() - names.keys():
            ray.kill(before[node].actor)

    def _begun(self, node: str, name: str) -> _Followed:
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = ray.remote(num_cpus=0, max_restarts=RESTARTS)(NodePower)
        return _Followed(name, actor.options(scheduling_strategy=where).remote(self._root))

    def read(self) -> list[dict[str, Any]]:
        """The readings that arrive within ANSWER_S: the node's name and the fields of `PowerReading`."""
        followed, rows = self._followed.values(), []
        for each in followed:
            each.pending = each.pending or each.actor.read.remote()
        awaited = [each.pending for each in followed]
        ready, _ = ray.wait(awaited, num_returns=len(awaited), timeout=ANSWER_S)
        for each in followed:
            if each.pending in ready:
                try:
                    reading: PowerReading = ray.get(each.pending)
                except RayError as error:
                    reading = PowerReading(error=last_line(error))
                each.pending = None
                rows.append({"node": each.name, **asdict(reading)})
        return rows

    def close(self) -> None:
        """End the actors."""
        with suppress(RayError):
            self.follow({})
