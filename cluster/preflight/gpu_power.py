"""Power of one node's GPUs, and of the machine, in watts.

The kernel's files tell it in microseconds and to everybody. Where they do not, as in some virtual machines,
`amd-smi` is asked. What nobody tells is None, never 0.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.preflight.gpu_facts import Run, by_gpu, file_text, kfd_cards, number, part

KERNEL = "hwmon"
"""Source of a reading that costs next to nothing."""
GPU_FILES = ("power1_average", "power1_input")
"""Files in microwatts. amdgpu has the first for MI200, the second for MI300, few have both (amdgpu_pm.c)."""
MOST_GPU_WATTS = 4000.0
"""A GPU that says more is not believed: below the 4295 W that the amdgpu of Linux 6.6 wrote for an error, its
code in 32 bits without a sign (our choice)."""
MOST_NODE_WATTS = 100_000.0
METER = "power_meter"
"""Name of the hwmon device of Linux's driver acpi_power_meter, which measures the whole machine."""
SOCKET = ("socket_power", "current_socket_power", "average_socket_power")
"""Names in `amd-smi metric --power`, newest first."""
AMD_SMI = ("amd-smi", "metric", "--power", "--json")


@dataclass(frozen=True, slots=True)
class PowerReading:
    """Watts of one node: of each GPU that it may use, and of the whole machine by its own meter.

    `source` told of the GPUs; `error` says why nobody did.
    """

    gpu_watts: tuple[float | None, ...] = ()
    node_watts: float | None = None
    source: str | None = None
    error: str | None = None


def read_power(root: Path, run: Run) -> PowerReading:
    """The power of this node now; `root` is the file system's, `run` runs a tool."""
    # Further partitions of one GPU are cards without sensors: the first one tells the whole GPU.
    cards = [card for card in kfd_cards(root) if (card / "hwmon").is_dir()]
    watts, whole = tuple(map(_card_watts, cards)), _meter_watts(root, len(cards))
    if _is_told(watts):
        return PowerReading(watts, whole, KERNEL)
    if _is_told(watts := amd_watts(run(list(AMD_SMI)) or "")):
        return PowerReading(watts, whole, AMD_SMI[0])
    return PowerReading(
        node_watts=whole, error=f"neither the kernel nor {AMD_SMI[0]} tells the power of a GPU"
    )


def amd_watts(text: str) -> tuple[float | None, ...]:
    """Watts of each GPU in the JSON of `amd-smi metric --power`."""
    told = (part(row, "power") for _, row in sorted(by_gpu(text).items()))
    return tuple(next((w for name in SOCKET if (w := _in_watts(power.get(name)))), None) for power in told)


def _is_told(watts: tuple[float | None, ...]) -> bool:
    return any(each is not None for each in watts)


def _in_watts(value: Any) -> float | None:
    """A figure of amd-smi's, bare or with its unit."""
    if isinstance(value, dict) and value.get("unit", "W") != "W":
        return None
    return _believed(number(value), MOST_GPU_WATTS)


def _card_watts(card: Path) -> float | None:
    """A second die of a GPU says 0 or nothing, for the first tells both."""
    files = (file for name in GPU_FILES for file in sorted(card.glob(f"hwmon/hwmon*/{name}")))
    return next((watts for file in files if (watts := _file_watts(file, MOST_GPU_WATTS))), None)


def _meter_watts(root: Path, cards: int) -> float | None:
    """Watts of the machine; None where this node is only a part of it, as a pod with some of its GPUs."""
    if not cards or len(list(root.glob("sys/class/drm/renderD*/device/hwmon"))) > cards:
        return None
    for name in sorted(root.glob("sys/class/hwmon/hwmon*/name")):
        if file_text(name) == METER:
            return _file_watts(name.parent / "power1_average", MOST_NODE_WATTS)
    return None


def _file_watts(file: Path, most: float) -> float | None:
    microwatts = number(file_text(file))
    return None if microwatts is None else _believed(microwatts / 1e6, most)


def _believed(watts: float | None, most: float) -> float | None:
    return watts if watts is not None and 0 < watts < most else None
