"""Judges a node by the rows of checks.yaml; here are the rules that are more than a bound of one fact."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from cluster.preflight.checks import Check, Expected, Finding, InspectedNode, Status
from cluster.preflight.node_facts import GIB, size

VRAM_OFF = 0.01
"""Beyond the share that drivers keep back (MI300X 0.0001; our choice)."""
MEC_FIRMWARE = 177
"""ROCm 6.4.3 release notes, amdgpu driver updates."""
SHARED_MEMORY_GIB, SHARED_MEMORY_RAY_GIB = 64, 0.1
CLOCK_MS, CLOCK_MOST_MS = 1, 50
KIND = re.compile(r"\bMI\d{3}\w*\b")
"""The model in a GPU's name: MI325X."""


Judgement = tuple[str | None, bool | Status, Mapping[str, Any]]
"""A figure, None if it could not be read; whether it is as expected, or its status; words of the row's texts.

A `remedy` among the words stands in place of the row's.
"""
Judge = Callable[[InspectedNode, Expected], Judgement | None]
"""Judges a node's facts; None if it is not concerned."""


def judged(figure: str | None, verdict: bool | Status, **words: Any) -> Judgement:
    return figure, verdict, words


def check_node(check: Check, node: InspectedNode, expected: Expected) -> Finding | None:
    """The finding of a check on a node; None if it does not concern the node."""
    if not check.concerns(node, expected):
        return None
    if check.where == "gpu" and not node.gpus:
        return Finding("unknown", without_gpus(node, expected), "", check=check.name, node=node.name)
    if judge := JUDGES.get(check.name):
        judgement = judge(node, expected)
    elif (value := node.host.facts.get(check.name)) is None:
        judgement = judged(None, False)
    else:
        judgement = judged(check.figure.format(value=value, expected=expected), check.is_met_by(value))
    if judgement is None:
        return None
    figure, verdict, words = judgement
    words = {"expected": expected, "remedy": check.unreported if figure is None else check.remedy, **words}
    status: Status = verdict if isinstance(verdict, str) else "pass" if verdict else check.bad
    if figure is None:
        status, figure = "unknown", "not reported here"
    elif status == "fail" and not (check.strict or expected.needs_gpus):
        status = "warn"
    remedy = "" if status == "pass" else words["remedy"].format(**words)
    return Finding(status, figure, check.expected.format(**words), remedy, check=check.name, node=node.name)


def without_gpus(node: InspectedNode, expected: Expected) -> str:
    """Reason why a node reports no GPU."""
    if not expected.arch:
        return "only AMD's GPUs are read"
    return "a driver, but no AMD GPU is reported" if node.host.gpus is None else "no GPU here"


def gpus(node: InspectedNode, expected: Expected) -> Judgement:
    """Number and kind of the GPUs: by a model in their names, else by architecture."""
    visible = node.host.gpus
    if not visible:
        why = without_gpus(node, expected)
        if not expected.arch or (visible is not None and not expected.needs_gpus):
            return judged(why, "unknown", remedy="")
        if visible is None:
            return judged(why, "unknown", remedy="give the container access to /dev/kfd and /sys/class/kfd")
        return judged(why, "fail", remedy="pass /dev/kfd and /dev/dri to the container; load the driver")
    kinds = Counter(gpu.kind for gpu in visible)
    figure = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    right = all(_is_kind(gpu.name, gpu.arch, expected) for gpu in visible)
    return judged(figure, right and len(kinds) == 1 and len(visible) == expected.gpus_per_node)


def _is_kind(name: str | None, arch: str | None, expected: Expected) -> bool:
    named = KIND.search(name or "")
    if arch and arch != expected.arch:
        return False
    # Some drivers call every GPU "AMD Radeon Graphics"; then its architecture has to do.
    return named[0] == expected.gpu_name if named else arch is not None


def ray_gpus(node: InspectedNode, expected: Expected) -> Judgement:
    """GPUs that Ray counts: without the Python module amdsmi it silently counts no AMD GPUs."""
    registered, visible = node.ray_gpus, node.host.gpus
    unread = visible is None or not (visible or expected.arch)
    figure = f"{registered:g} in Ray, {'?' if unread else len(visible or ())} visible"
    if unread and expected.needs_gpus:
        return judged(figure, "unknown", remedy=without_gpus(node, expected))
    if visible is None or (not visible and not expected.needs_gpus):
        return judged(figure, "unknown", remedy="Ray counts pretended GPUs here" if registered else "")
    good = registered == len(visible) == expected.gpus_per_node
    return judged(figure, good, module="" if node.host.amdsmi else " (Python cannot import amdsmi)")


def ecc(node: InspectedNode, expected: Expected) -> Judgement:
    errors = [gpu.ecc_errors for gpu in node.gpus]
    bad = [gpu.index for gpu in node.gpus if gpu.ecc_errors]
    figure = None if None in errors and not bad else f"{sum(e or 0 for e in errors)} uncorrectable"
    return judged(figure, not bad, gpus=_list(bad))


def vram_size(node: InspectedNode, expected: Expected) -> Judgement:
    """Memory of every GPU against `hardware.hbm_bytes`, from which KV caches and plans are computed."""
    totals = {gpu.index: gpu.vram_bytes for gpu in node.gpus if gpu.vram_bytes is not None}
    gaps = {index: abs(total - expected.hbm_bytes) for index, total in totals.items()}
    off = [index for index, gap in gaps.items() if gap > VRAM_OFF * expected.hbm_bytes]
    furthest = totals[max(gaps, key=lambda index: gaps[index])] if gaps else 0.0
    figure = f"{size(furthest)} ({furthest:.0f} bytes)" if off or len(totals) == len(node.gpus) else None
    return judged(figure, not off, gpus=_list(off), size=size(expected.hbm_bytes))


def mec(node: InspectedNode, expected: Expected) -> Judgement:
    versions = [gpu.mec_firmware for gpu in node.gpus]
    oldest = min((value for value in versions if value is not None), default=MEC_FIRMWARE)
    old = oldest < MEC_FIRMWARE
    worked_around = node.host.shown.get("HSA_NO_SCRATCH_RECLAIM") == "1"
    figure = f"{oldest}{' with HSA_NO_SCRATCH_RECLAIM=1' if worked_around else ''}"
    unreported = None in versions and not old
    return judged(None if unreported else figure, worked_around or not old, least=MEC_FIRMWARE)


def xgmi(node: InspectedNode, expected: Expected) -> Judgement:
    peers = len(node.gpus) - 1
    links = [gpu.links for gpu in node.gpus]
    figure = None if None in links else f"{sum(map(len, filter(None, links)))} of {len(links) * peers} links"
    short = [gpu.index for gpu in node.gpus if gpu.links is not None and len(gpu.links) < peers]
    return judged(figure, not short, gpus=_list(short))


def gpu_numa(node: InspectedNode, expected: Expected) -> Judgement | None:
    """GPUs 0-3 in one NUMA node and 4-7 in the other, so that a group of TP4 stays within one."""
    nodes = [gpu.numa_node for gpu in node.gpus]
    if len(nodes) != 8:
        return None
    figure = None if None in nodes or -1 in nodes else " ".join(map(str, nodes))
    return judged(figure, len(set(nodes[:4])) == len(set(nodes[4:])) == 1 and nodes[0] != nodes[-1])


def visible_to_torch(node: InspectedNode, expected: Expected) -> Judgement:
    """Each GPU id that Ray hands out is visible alone, and computes."""
    if node.devices is None:
        return judged("PyTorch is not here or the GPUs were not free", "unknown", remedy="")
    bad = [device for device, count in node.devices.items() if count != 1]
    figure = f"{len(node.devices) - len(bad)} of {len(node.devices)} GPUs"
    return judged(figure, not bad and bool(node.devices), gpus=_list(bad))


def _list(numbers: list[int] | list[str]) -> str:
    return ", ".join(map(str, numbers))


def clock(node: InspectedNode, expected: Expected) -> Judgement:
    """Clock offset from the driver; unknown if the uncertainty of the measurement decides."""
    if node.clock_s is None:
        return judged("not measured", "unknown", remedy="")
    signed_ms, spread_ms = (seconds * 1e3 for seconds in node.clock_s)
    figure, offset_ms = f"{signed_ms:+.2f} ms ± {spread_ms:.2f} ms", abs(signed_ms)
    if offset_ms + spread_ms < CLOCK_MS:
        return judged(figure, "pass")
    if offset_ms - spread_ms < CLOCK_MS:
        remedy = "the round trip is too slow to tell; look at `chronyc tracking`"
        return judged(figure, "unknown", remedy=remedy)
    return judged(figure, "fail" if offset_ms - spread_ms >= CLOCK_MOST_MS else "warn")


def weights(node: InspectedNode, expected: Expected) -> Judgement | None:
    if expected.model_path:
        return judged(node.host.weights, node.host.facts["weights equal"] is not None)
    figure = "engine.model_path is empty: vLLM looks the model up by its name"
    remedy = "set engine.model_path to a folder that every node has"
    return judged(figure, "unknown", remedy=remedy) if expected.needs_gpus else None


def device_variables(node: InspectedNode, expected: Expected) -> Judgement:
    """Ray refuses ROCR alone, and lists of HIP and CUDA that differ hide GPUs from one of two layers."""
    devices = {name: value for name, value in node.host.shown.items() if name.endswith("_VISIBLE_DEVICES")}
    hip, cuda = devices.get("HIP_VISIBLE_DEVICES"), devices.get("CUDA_VISIBLE_DEVICES")
    alone = "ROCR_VISIBLE_DEVICES" in devices and hip is None
    differ = hip is not None and cuda is not None and hip != cuda
    figure = ", ".join(f"{name}={value}" for name, value in devices.items()) or "none set"
    return judged(figure, not (alone or differ))


def shared_memory(node: InspectedNode, expected: Expected) -> Judgement:
    least_gib = SHARED_MEMORY_GIB if expected.needs_gpus else SHARED_MEMORY_RAY_GIB
    there: Any = node.host.facts["/dev/shm"]
    figure = None if there is None else size(there)
    return judged(figure, (there or 0) >= least_gib * GIB, least=least_gib)


JUDGES: Mapping[str, Judge] = {
    "GPUs": gpus,
    "GPUs in Ray": ray_gpus,
    "ECC errors": ecc,
    "VRAM size": vram_size,
    "MEC firmware": mec,
    "XGMI links": xgmi,
    "NUMA node of GPUs": gpu_numa,
    "GPUs in PyTorch": visible_to_torch,
    "clock": clock,
    "weights": weights,
    "device variables": device_variables,
    "/dev/shm": shared_memory,
}
"""Rows whose judgement needs more than one fact or another bound for each engine."""
