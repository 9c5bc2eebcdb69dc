"""Facts of one node's GPUs from `amd-smi`, the kernel's own tree and PyTorch; judges nothing.

Every tool prints text, which a pure function parses. A fact that a tool does not report is None.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer
from typing import Any

Run = Callable[[list[str]], str | None]
"""Runs a command and returns its output; None if there is no such command or it failed."""

TOOL_TIMEOUT_S = 15.0
MOST_BYTES = 4 * 2**20
"""Most bytes of a tool's output; `amd-smi static` of eight GPUs fills some 100 kB (our choice)."""
IMPORT_TIMEOUT_S = 90.0
DEVICE_PROBE = "import torch as t; t.ones(1, device='cuda').item(); print(t.cuda.device_count())"
KFD_NODES = "sys/class/kfd/kfd/topology/nodes"
KFD_XGMI = 11
"""HSA_IOLINKTYPE_XGMI of the Linux kernel's and ROCm's headers (kfd_crat.h, hsakmttypes.h)."""
MEC_BITS = 0x3FF
"""ROCm's runtime looks at the low ten bits of the firmware's version (HSA_ENGINE_ID.uCode)."""
AMD_SMI = (
    ("static", "--asic", "--driver", "--numa"),
    ("metric", "--mem-usage", "--ecc"),
    ("firmware",),
    ("topology",),
)


def run_tool(
    command: list[str], timeout_s: float = TOOL_TIMEOUT_S, env: Mapping[str, str] | None = None
) -> str | None:
    """The output of a command; None if it does not exist, fails, takes longer or says too much."""
    if shutil.which(command[0]) is None:
        return None
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=None if env is None else dict(env),
            start_new_session=True,  # what it started ends with it
        )
    except OSError:
        return None
    late = Timer(timeout_s, _end, (process,))
    late.start()
    with process:
        said = process.stdout.read(MOST_BYTES + 1) if process.stdout else b""
        if len(said) > MOST_BYTES:
            _end(process)
    late.cancel()
    return said.decode(errors="replace") if process.returncode == 0 else None


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver sees it. `links` are the other GPUs it reaches by XGMI."""

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

    def over(self, other: "Gpu") -> "Gpu":
        """This GPU with what it lacks taken from `other`."""
        lacking = {
            name: getattr(other, name) for name in Gpu.__dataclass_fields__ if getattr(self, name) is None
        }
        return replace(self, **lacking)


def read_gpus(root: Path, run: Run) -> tuple[Gpu, ...] | None:
    """The GPUs of this node; empty without a driver, None if there is a driver but nothing tells of them.

    Only AMD's are read: those of NVIDIA's driver are not known.
    """
    kernel = kfd_gpus(root)
    reported = amd_gpus(run)
    if reported:
        # The kernel numbers its GPUs in the same order, unless a container shows only some of them.
        same = len(reported) == len(kernel)
        return tuple(mine.over(its) for mine, its in zip(reported, kernel, strict=True)) if same else reported
    drivers = root / "sys/class/kfd", root / "proc/driver/nvidia"
    return kernel or (None if any(driver.exists() for driver in drivers) else ())


def amd_gpus(run: Run) -> tuple[Gpu, ...]:
    """The GPUs in `amd-smi`'s JSON; some versions wrap lists and numbers."""
    static, *others = (by_gpu(run(["amd-smi", *words, "--json"])) for words in AMD_SMI)
    return tuple(
        _amd_gpu(at, found, *(of.get(at, {}) for of in others)) for at, found in sorted(static.items())
    )


def _amd_gpu(index: int, static: Any, metric: Any, firmware: Any, topology: Any) -> Gpu:
    asic, driver, memory = part(static, "asic"), part(static, "driver"), part(metric, "mem_usage")
    mec = [
        number(row.get("fw_version")) for row in firmware.get("fw_list", []) if row.get("fw_id") == "CP_MEC1"
    ]
    links = [link["gpu"] for link in topology.get("links", []) if link.get("link_type") == "XGMI"]
    return Gpu(
        index,
        name=_text(asic.get("market_name")),
        arch=_text(asic.get("target_graphics_version")),
        driver=_text(driver.get("version") or driver.get("driver_version")),
        vram_used_bytes=_bytes(memory.get("used_vram")),
        ecc_errors=_whole(number(part(metric, "ecc").get("total_uncorrectable_count"))),
        mec_firmware=_whole(mec[0], MEC_BITS) if mec else None,
        numa_node=_whole(number(part(static, "numa").get("node"))),
        links=frozenset(links) if "links" in topology else None,
        vram_bytes=_bytes(memory.get("total_vram")),
    )


def by_gpu(text: str | None) -> Mapping[int, Any]:
    """The objects of one JSON output by GPU; a warning may stand before the JSON."""
    start = re.search(r"^[\[{]", text or "", re.MULTILINE)
    if text is None or start is None:
        return {}
    try:
        tree = json.loads(text[start.start() :])
    except ValueError:
        return {}
    rows = tree.get("gpu_data", []) if isinstance(tree, dict) else tree
    return {row["gpu"]: row for row in rows if isinstance(row, dict) and isinstance(row.get("gpu"), int)}


def part(tree: Any, name: str) -> Mapping[str, Any]:
    part = tree.get(name)
    return part if isinstance(part, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value not in ("", "N/A") else None


def number(value: Any) -> float | None:
    """A number given bare, as text in base 10 or 16, or with its unit; None where it is N/A."""
    if isinstance(value, dict):
        value = value.get("value")
    try:
        return float(int(value, 0)) if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return None


def _whole(value: float | None, bits: int = -1) -> int | None:
    return None if value is None else int(value) & bits


def _bytes(value: Any) -> float | None:
    """Bytes of a tool's figure, whose units are powers of two; MB if it names none."""
    unit = value.get("unit", "MB") if isinstance(value, dict) else "MB"
    figure = number(value)
    return None if figure is None else figure * {"GB": 2.0**30, "KB": 2.0**10, "B": 1.0}.get(unit, 2.0**20)


def kfd_gpus(root: Path) -> tuple[Gpu, ...]:
    """The GPUs in the kernel's tree of compute devices (amdkfd), which needs no tool."""
    nodes = {int(path.name): path for path in (root / KFD_NODES).glob("[0-9]*")}
    facts = {number: _properties(path / "properties") for number, path in sorted(nodes.items())}
    ranks = {number: rank for rank, number in enumerate(n for n in facts if facts[n].get("simd_count"))}
    driver = file_text(root / "sys/module/amdgpu/version")
    return tuple(_kfd_gpu(root, nodes[number], facts[number], ranks, driver) for number in ranks)


def _kfd_gpu(
    root: Path, path: Path, facts: Mapping[str, int], ranks: Mapping[int, int], driver: str | None
) -> Gpu:
    links = [_properties(link) for link in sorted(path.glob("io_links/*/properties"))]
    peers = frozenset(ranks[link["node_to"]] for link in links if _is_xgmi(link) and link["node_to"] in ranks)
    card = _card(root, facts)
    return Gpu(
        ranks[int(path.name)],
        arch=_gfx(facts.get("gfx_target_version", 0)),
        driver=driver,
        vram_used_bytes=_file_number(card / "mem_info_vram_used"),
        ecc_errors=_ecc_errors(card / "ras/umc_err_count"),
        mec_firmware=_whole(facts.get("fw_version"), MEC_BITS),
        numa_node=_whole(_file_number(card / "numa_node")),
        links=peers if links else None,
        vram_bytes=_file_number(card / "mem_info_vram_total"),
    )


def kfd_cards(root: Path) -> list[Path]:
    """The devices of the GPUs in the kernel's tree, in their order; the others of a machine are hidden."""
    nodes = sorted((root / KFD_NODES).glob("[0-9]*"), key=lambda path: int(path.name))
    facts = (_properties(path / "properties") for path in nodes)
    return [_card(root, known) for known in facts if known.get("simd_count")]


def _card(root: Path, facts: Mapping[str, int]) -> Path:
    return root / f"sys/class/drm/renderD{facts.get('drm_render_minor', 0)}/device"


def _is_xgmi(link: Mapping[str, int]) -> bool:
    return link.get("type") == KFD_XGMI and "node_to" in link


def _gfx(version: int) -> str:
    """gfx942 for 90402: major, minor and stepping in two decimal digits each, the last two in hexadecimal."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _properties(path: Path) -> dict[str, int]:
    """The `name number` lines of one properties file; empty where it cannot be read."""
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


def _file_number(path: Path) -> float | None:
    return number(file_text(path))


def _ecc_errors(path: Path) -> int | None:
    """Uncorrectable errors in a RAS file of amdgpu, which has the lines `ue: N` and `ce: N`."""
    found = re.search(r"^ue: *(\d+)", file_text(path) or "", re.MULTILINE)
    return int(found[1]) if found else None


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
