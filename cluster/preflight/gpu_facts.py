"""Facts of one node's GPUs, from files of the kernel, AMD's Python module amdsmi and PyTorch.

A fact that cannot be read is None.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import Any

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


def kfd_cards(root: Path) -> list[Path]:
    """The devices of the GPUs in the kernel's tree, in their order; a container sees only its own."""
    return [_card(root, _properties(folder / "properties")) for folder in _kfd_gpus(root)]


def _kfd_gpus(root: Path) -> list[Path]:
    """The folders of the compute devices that are GPUs, in their order."""
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
