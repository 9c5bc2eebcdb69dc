"""A node for preflight: files of the kernel, ROCm's module amdsmi, and facts that pass every check."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from cluster.preflight.gpus import Gpu
from cluster.preflight.node_facts import Host

NODES = "sys/class/kfd/kfd/topology/nodes"


def power_tree(root: Path, microwatts: Sequence[float], meter_microwatts: float = 0.0) -> list[str]:
    """A CPU and a GPU for each figure, of MI300's kind; the folders of the GPUs' devices below `root`."""
    write(root, {f"{NODES}/0/properties": "cpu_cores_count 96\nsimd_count 0\n"})
    cards = [f"sys/class/drm/renderD{128 + gpu}/device" for gpu in range(len(microwatts))]
    for gpu, (card, power) in enumerate(zip(cards, microwatts, strict=True)):
        properties = f"simd_count 1216\ndrm_render_minor {128 + gpu}\n"
        write(root, {f"{NODES}/{gpu + 1}/properties": properties})
        write(root, {f"{card}/hwmon/hwmon3/power1_input": f"{power:.0f}\n"})
    if meter_microwatts:
        meter = {"name": "power_meter\n", "power1_average": f"{meter_microwatts:.0f}\n"}
        write(root, {f"sys/class/hwmon/hwmon0/{name}": text for name, text in meter.items()})
    return cards


def write(root: Path, texts: dict[str, str]) -> None:
    """Files below `root` by their paths."""
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class AmdSmiError(Exception):
    """What the module raises for a GPU that does not support a question."""


def install_amdsmi(
    monkeypatch: pytest.MonkeyPatch, gpus: Sequence[dict[str, Any]], has_driver: bool = True
) -> None:
    """Make `import amdsmi` find a module whose GPUs have these facts; a missing fact is an error."""

    def init() -> None:
        if not has_driver:
            raise AmdSmiError("AMDSMI_STATUS_DRIVER_NOT_LOADED")

    def fact(name: str) -> Any:
        def read(gpu: dict[str, Any]) -> Any:
            if name not in gpu:
                raise AmdSmiError("AMDSMI_STATUS_NOT_SUPPORTED")
            return gpu[name]

        return read

    module: Any = ModuleType("amdsmi")
    module.AmdSmiException = AmdSmiError
    module.amdsmi_init = init
    module.amdsmi_get_processor_handles = lambda: list(gpus)
    module.amdsmi_get_gpu_asic_info = fact("asic")
    module.amdsmi_get_power_info = fact("power")
    monkeypatch.setitem(sys.modules, "amdsmi", module)


HBM, GIB = 262128 * 2**20, 2**30
CASES = yaml.safe_load((Path(__file__).parents[2] / "data" / "preflight_nodes.yaml").read_text())


def healthy_gpu(index: int) -> Gpu:
    peers = frozenset(range(8)) - {index}
    return Gpu(index, "AMD Instinct MI325X", "gfx942", "6.12.12", 0.3 * GIB, 0, 177, index // 4, peers, HBM)


HEALTHY = Host(
    facts=CASES["healthy"],
    gpus=tuple(map(healthy_gpu, range(8))),
    amdsmi=True,
    environment={"NCCL_MIN_NCHANNELS": "1f"},
    shown={},
    weights="240.0 GiB in 24 files",
)
