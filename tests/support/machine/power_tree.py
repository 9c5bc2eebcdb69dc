"""The kernel's files of a node's GPUs and their power, as far as they are read."""

from collections.abc import Sequence
from pathlib import Path

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
