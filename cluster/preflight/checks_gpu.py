"""Checks of a node's GPUs: pure judges and their table. Checks of kind `gpu` need a node with GPUs."""

import re
from collections import Counter

from cluster.preflight.checks import (
    GIB,
    Expected,
    Finding,
    InspectedNode,
    NodeCheck,
    Threshold,
    judged,
    size,
    without_gpus,
)

VRAM_IDLE = Threshold(1, "GiB", "judged: an idle MI300X shows about 0.3 GiB")
VRAM_OFF = Threshold(1, "%", "our choice: beyond what drivers keep back (MI300X 0.01 %)")
MEC_FIRMWARE = Threshold(177, "or later", "ROCm 6.4.3 release notes, amdgpu driver updates")
KIND = re.compile(r"\bMI\d{3}\w*\b")
"""The model in a GPU's name: MI325X."""


def gpus(seen: InspectedNode, expected: Expected) -> Finding:
    """Number and kind of the GPUs: by a model in their names, else by architecture."""
    wanted = f"{expected.gpus_per_node} x {expected.gpu_name}"
    visible = seen.host.gpus
    if not visible:
        why = without_gpus(seen, expected)
        if not expected.arch or (visible is not None and not expected.needs_gpus):
            return Finding("unknown", why, wanted)
        if visible is None:
            return Finding("unknown", why, wanted, "give the container access to /dev/kfd and /sys/class/kfd")
        return Finding("fail", why, wanted, "pass /dev/kfd and /dev/dri to the container; load the driver")
    kinds = Counter(f"{gpu.name or 'GPU'} {gpu.arch or ''}".strip() for gpu in visible)
    figure = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    right = all(_is_kind(gpu.name, gpu.arch, expected) for gpu in visible)
    good = right and len(kinds) == 1 and len(visible) == expected.gpus_per_node
    return judged(figure, wanted, good, "choose hardware=... and cluster.gpus_per_node=... as they are")


def _is_kind(name: str | None, arch: str | None, expected: Expected) -> bool:
    named = KIND.search(name or "")
    if arch and arch != expected.arch:
        return False
    # Some drivers call every GPU "AMD Radeon Graphics"; then its architecture has to do.
    return named[0] == expected.gpu_name if named else arch is not None


def ray_gpus(seen: InspectedNode, expected: Expected) -> Finding:
    """GPUs that Ray counts: without the Python module amdsmi it silently counts no AMD GPUs."""
    registered, visible = seen.node.ray_gpus, seen.host.gpus
    unread = visible is None or not (visible or expected.arch)
    figure = f"{registered:g} in Ray, {'?' if unread else len(visible or ())} visible"
    wanted = f"{expected.gpus_per_node} in Ray and visible"
    if unread and expected.needs_gpus:
        return Finding("unknown", figure, wanted, without_gpus(seen, expected))
    if visible is None or (not visible and not expected.needs_gpus):
        return Finding("unknown", figure, wanted, "Ray counts pretended GPUs here" if registered else "")
    good = registered == len(visible) == expected.gpus_per_node
    module = "" if seen.host.amdsmi else " (Python cannot import amdsmi)"
    return judged(figure, wanted, good, f"start Ray with --num-gpus {expected.gpus_per_node}{module}")


def emulation(seen: InspectedNode, expected: Expected) -> Finding:
    value = seen.host.shown.get("MAXQPS_EMULATED_GPU")
    figure = f"MAXQPS_EMULATED_GPU={value}" if value else "not set"
    return judged(figure, "not set where GPUs are", not value, "unset MAXQPS_EMULATED_GPU on nodes with GPUs")


def ecc(seen: InspectedNode, expected: Expected) -> Finding:
    errors = [gpu.ecc_errors for gpu in seen.gpus]
    bad = [gpu.index for gpu in seen.gpus if gpu.ecc_errors]
    figure = None if None in errors and not bad else f"{sum(e or 0 for e in errors)} uncorrectable"
    return judged(
        figure, "0 uncorrectable", not bad, f"reset or replace GPU {_list(bad)}, and drain the node"
    )


def vram(seen: InspectedNode, expected: Expected) -> Finding:
    used = [gpu.vram_used_bytes for gpu in seen.gpus]
    most = max((value for value in used if value is not None), default=None)
    figure = None if most is None or None in used else f"at most {size(most)} used"
    good = most is not None and most <= VRAM_IDLE.value * GIB
    return judged(
        figure, f"at most {VRAM_IDLE} used", good, "end what still holds the GPUs (amd-smi process)"
    )


def vram_size(seen: InspectedNode, expected: Expected) -> Finding:
    """Memory of every GPU against `hardware.hbm_bytes`, from which KV caches and plans are computed."""
    totals = [gpu.vram_bytes for gpu in seen.gpus]
    known = [total for total in totals if total is not None]
    furthest = max(known, key=lambda total: abs(total - expected.hbm_bytes), default=0.0)
    off = [
        gpu.index
        for gpu in seen.gpus
        if gpu.vram_bytes is not None
        and abs(gpu.vram_bytes - expected.hbm_bytes) > VRAM_OFF.value / 100 * expected.hbm_bytes
    ]
    figure = None if None in totals and not off else f"{size(furthest)} ({furthest:.0f} bytes)"
    remedy = f"GPU {_list(off)}: set hardware.hbm_bytes to that, unless it is partitioned or another GPU"
    return judged(figure, f"{size(expected.hbm_bytes)} within {VRAM_OFF}", not off, remedy, "warn")


def mec(seen: InspectedNode, expected: Expected) -> Finding:
    versions = [gpu.mec_firmware for gpu in seen.gpus]
    oldest = min((value for value in versions if value is not None), default=MEC_FIRMWARE.value)
    old = oldest < MEC_FIRMWARE.value
    worked_around = seen.host.shown.get("HSA_NO_SCRATCH_RECLAIM") == "1"
    figure = f"{oldest}{' with HSA_NO_SCRATCH_RECLAIM=1' if worked_around else ''}"
    remedy = "update the firmware, or set engine.env.HSA_NO_SCRATCH_RECLAIM=1"
    unreported = None in versions and not old
    return judged(None if unreported else figure, f"{MEC_FIRMWARE}", worked_around or not old, remedy)


def xgmi(seen: InspectedNode, expected: Expected) -> Finding:
    peers = len(seen.gpus) - 1
    links = [gpu.links for gpu in seen.gpus]
    figure = None if None in links else f"{sum(map(len, filter(None, links)))} of {len(links) * peers} links"
    short = [gpu.index for gpu in seen.gpus if gpu.links is not None and len(gpu.links) < peers]
    remedy = f"reseat or reset GPU {_list(short)}: `amd-smi topology` shows other than XGMI"
    return judged(figure, "every GPU linked to every other", not short, remedy)


def gpu_numa(seen: InspectedNode, expected: Expected) -> Finding | None:
    """GPUs 0-3 in one NUMA node and 4-7 in the other, so that a group of TP4 stays within one."""
    nodes = [gpu.numa_node for gpu in seen.gpus]
    if len(nodes) != 8:
        return None
    figure = None if None in nodes or -1 in nodes else " ".join(map(str, nodes))
    good = len(set(nodes[:4])) == len(set(nodes[4:])) == 1 and nodes[0] != nodes[-1]
    remedy = "give each TP4 replica GPUs of one NUMA node; check the VM's topology"
    return judged(figure, "GPUs 0-3 and 4-7 in a NUMA node each", good, remedy, "warn")


def visible_to_torch(seen: InspectedNode, expected: Expected) -> Finding:
    """Each GPU id that Ray hands out is visible alone, and computes."""
    wanted = "each id that Ray hands out computes"
    if seen.devices is None:
        return Finding("unknown", "PyTorch is not here or the GPUs were not free", wanted)
    bad = [device for device, count in seen.devices.items() if count != 1]
    figure = f"{len(seen.devices) - len(bad)} of {len(seen.devices)} GPUs"
    remedy = f"PyTorch cannot use GPU {_list(bad)} alone: check HIP_VISIBLE_DEVICES and the driver (dmesg)"
    return judged(figure, wanted, not bad and bool(seen.devices), remedy)


def _list(numbers: list[int] | list[str]) -> str:
    return ", ".join(map(str, numbers))


GPU_CHECKS = (
    NodeCheck("GPUs", "serving", gpus),
    NodeCheck("GPUs in Ray", "serving", ray_gpus),
    NodeCheck("emulated GPU", "gpu", emulation, strict=True),
    NodeCheck("ECC errors", "gpu", ecc),
    NodeCheck("VRAM", "gpu", vram),
    NodeCheck("VRAM size", "gpu", vram_size),
    NodeCheck("MEC firmware", "gpu", mec, amd=True),
    NodeCheck("XGMI links", "gpu", xgmi, amd=True),
    NodeCheck("NUMA node of GPUs", "gpu", gpu_numa),
    NodeCheck("GPUs in PyTorch", "gpu", visible_to_torch),
)
