"""Judges of a node's GPUs and of the rest of it, and their tables."""

import re
from collections import Counter

from cluster.preflight.checks import (
    GIB,
    Expected,
    Finding,
    InspectedNode,
    NodeCheck,
    Status,
    judged,
    size,
    without_gpus,
)
from cluster.preflight.node_facts import REPLICA_PORTS, Weights
from cluster.ray_session.own_machine import MOST_STREAMS

VRAM_IDLE_GIB = 1
"""Judged: an idle MI300X shows about 0.3 GiB."""
VRAM_OFF_PERCENT = 1
"""Beyond what drivers keep back (MI300X 0.01 %; our choice)."""
MEC_FIRMWARE = 177
"""ROCm 6.4.3 release notes, amdgpu driver updates."""
OPEN_FILES = 65536
"""ROCm/cvs host checks; a stream is a file in the client, proxy and replica."""
LISTEN_BACKLOG = 4096
"""Linux default since 5.4; as many connections as HAProxy serves on a node."""
SHARED_MEMORY_GIB, SHARED_MEMORY_RAY_GIB = 64, 0.1
"""KubeRay and vLLM on 8 GPUs have a /dev/shm of 64 to 128 GiB; the object store of a session of our own is on
disk with less."""
DISK_FREE_PERCENT = 5
"""Ray spills no object to a disk filled to 95 % (local_fs_capacity_threshold)."""
FREE_REPLICA_PORTS = 64
"""Judged: eight replicas and their successors, eight times over."""
CLOCK_MS, CLOCK_MOST_MS = 1, 50
"""ROCm/cvs host checks (chrony); beyond the second, load actors refuse a common start."""
RAY_MAXCONN = 4096
"""Default connections of HAProxy (RAY_SERVE_HAPROXY_MAXCONN of Ray 2.60)."""
KIND = re.compile(r"\bMI\d{3}\w*\b")
"""The model in a GPU's name: MI325X."""


def gpus(node: InspectedNode, expected: Expected) -> Finding:
    """Number and kind of the GPUs: by a model in their names, else by architecture."""
    wanted = f"{expected.gpus_per_node} x {expected.gpu_name}"
    visible = node.host.gpus
    if not visible:
        why = without_gpus(node, expected)
        if not expected.arch or (visible is not None and not expected.needs_gpus):
            return Finding("unknown", why, wanted)
        if visible is None:
            return Finding("unknown", why, wanted, "give the container access to /dev/kfd and /sys/class/kfd")
        return Finding("fail", why, wanted, "pass /dev/kfd and /dev/dri to the container; load the driver")
    kinds = Counter(gpu.kind for gpu in visible)
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


def ray_gpus(node: InspectedNode, expected: Expected) -> Finding:
    """GPUs that Ray counts: without the Python module amdsmi it silently counts no AMD GPUs."""
    registered, visible = node.node.ray_gpus, node.host.gpus
    unread = visible is None or not (visible or expected.arch)
    figure = f"{registered:g} in Ray, {'?' if unread else len(visible or ())} visible"
    wanted = f"{expected.gpus_per_node} in Ray and visible"
    if unread and expected.needs_gpus:
        return Finding("unknown", figure, wanted, without_gpus(node, expected))
    if visible is None or (not visible and not expected.needs_gpus):
        return Finding("unknown", figure, wanted, "Ray counts pretended GPUs here" if registered else "")
    good = registered == len(visible) == expected.gpus_per_node
    module = "" if node.host.amdsmi else " (Python cannot import amdsmi)"
    return judged(figure, wanted, good, f"start Ray with --num-gpus {expected.gpus_per_node}{module}")


def emulation(node: InspectedNode, expected: Expected) -> Finding:
    value = node.host.shown.get("MAXQPS_EMULATED_GPU")
    figure = f"MAXQPS_EMULATED_GPU={value}" if value else "not set"
    return judged(figure, "not set where GPUs are", not value, "unset MAXQPS_EMULATED_GPU on nodes with GPUs")


def ecc(node: InspectedNode, expected: Expected) -> Finding:
    errors = [gpu.ecc_errors for gpu in node.gpus]
    bad = [gpu.index for gpu in node.gpus if gpu.ecc_errors]
    figure = None if None in errors and not bad else f"{sum(e or 0 for e in errors)} uncorrectable"
    remedy = f"reset or replace GPU {_list(bad)}, and drain the node"
    return judged(figure, "0 uncorrectable", not bad, remedy)


def vram(node: InspectedNode, expected: Expected) -> Finding:
    used = [gpu.vram_used_bytes for gpu in node.gpus]
    most = max((value for value in used if value is not None), default=None)
    figure = None if most is None or None in used else f"at most {size(most)} used"
    good = most is not None and most <= VRAM_IDLE_GIB * GIB
    remedy = "end what still holds the GPUs (amd-smi process)"
    return judged(figure, f"at most {VRAM_IDLE_GIB} GiB used", good, remedy)


def vram_size(node: InspectedNode, expected: Expected) -> Finding:
    """Memory of every GPU against `hardware.hbm_bytes`, from which KV caches and plans are computed."""
    totals = {gpu.index: gpu.vram_bytes for gpu in node.gpus if gpu.vram_bytes is not None}
    gaps = {index: abs(total - expected.hbm_bytes) for index, total in totals.items()}
    off = [index for index, gap in gaps.items() if gap > VRAM_OFF_PERCENT / 100 * expected.hbm_bytes]
    furthest = totals[max(gaps, key=lambda index: gaps[index])] if gaps else 0.0
    figure = f"{size(furthest)} ({furthest:.0f} bytes)" if off or len(totals) == len(node.gpus) else None
    remedy = f"GPU {_list(off)}: set hardware.hbm_bytes to that, unless it is partitioned or another GPU"
    return judged(figure, f"{size(expected.hbm_bytes)} within {VRAM_OFF_PERCENT} %", not off, remedy, "warn")


def mec(node: InspectedNode, expected: Expected) -> Finding:
    versions = [gpu.mec_firmware for gpu in node.gpus]
    oldest = min((value for value in versions if value is not None), default=MEC_FIRMWARE)
    old = oldest < MEC_FIRMWARE
    worked_around = node.host.shown.get("HSA_NO_SCRATCH_RECLAIM") == "1"
    figure = f"{oldest}{' with HSA_NO_SCRATCH_RECLAIM=1' if worked_around else ''}"
    remedy = "update the firmware, or set engine.env.HSA_NO_SCRATCH_RECLAIM=1"
    unreported = None in versions and not old
    good = worked_around or not old
    return judged(None if unreported else figure, f"{MEC_FIRMWARE} or later", good, remedy)


def xgmi(node: InspectedNode, expected: Expected) -> Finding:
    peers = len(node.gpus) - 1
    links = [gpu.links for gpu in node.gpus]
    figure = None if None in links else f"{sum(map(len, filter(None, links)))} of {len(links) * peers} links"
    short = [gpu.index for gpu in node.gpus if gpu.links is not None and len(gpu.links) < peers]
    remedy = f"reseat or reset GPU {_list(short)}: `amd-smi topology` shows other than XGMI"
    return judged(figure, "every GPU linked to every other", not short, remedy)


def gpu_numa(node: InspectedNode, expected: Expected) -> Finding | None:
    """GPUs 0-3 in one NUMA node and 4-7 in the other, so that a group of TP4 stays within one."""
    nodes = [gpu.numa_node for gpu in node.gpus]
    if len(nodes) != 8:
        return None
    figure = None if None in nodes or -1 in nodes else " ".join(map(str, nodes))
    good = len(set(nodes[:4])) == len(set(nodes[4:])) == 1 and nodes[0] != nodes[-1]
    remedy = "give each TP4 replica GPUs of one NUMA node; check the VM's topology"
    return judged(figure, "GPUs 0-3 and 4-7 in a NUMA node each", good, remedy, "warn")


def visible_to_torch(node: InspectedNode, expected: Expected) -> Finding:
    """Each GPU id that Ray hands out is visible alone, and computes."""
    wanted = "each id that Ray hands out computes"
    if node.devices is None:
        return Finding("unknown", "PyTorch is not here or the GPUs were not free", wanted)
    bad = [device for device, count in node.devices.items() if count != 1]
    figure = f"{len(node.devices) - len(bad)} of {len(node.devices)} GPUs"
    remedy = f"PyTorch cannot use GPU {_list(bad)} alone: check HIP_VISIBLE_DEVICES and the driver (dmesg)"
    return judged(figure, wanted, not bad and bool(node.devices), remedy)


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


def clock(node: InspectedNode, expected: Expected) -> Finding:
    """Clock offset from the driver; unknown if the uncertainty of the measurement decides."""
    wanted = f"within {CLOCK_MS} ms of the driver"
    if node.clock is None:
        return Finding("unknown", "not measured", wanted)
    offset_ms, spread_ms = abs(node.clock.offset_s) * 1e3, node.clock.uncertainty_s * 1e3
    figure = f"{node.clock.offset_s * 1e3:+.2f} ms ± {spread_ms:.2f} ms"
    if offset_ms + spread_ms < CLOCK_MS:
        return Finding("pass", figure, wanted)
    if offset_ms - spread_ms < CLOCK_MS:
        remedy = "the round trip is too slow to tell; look at `chronyc tracking`"
        return Finding("unknown", figure, wanted, remedy)
    status: Status = "fail" if offset_ms - spread_ms >= CLOCK_MOST_MS else "warn"
    return Finding(status, figure, wanted, "synchronise the clocks of all nodes with chrony")


def ntp(node: InspectedNode, expected: Expected) -> Finding:
    offset_s = node.host.ntp_offset_s
    wanted = f"within {CLOCK_MS} ms of NTP"
    if offset_s is None:
        remedy = "install chrony, and wait until it is synchronised"
        return Finding("unknown", "not reported by chrony", wanted, remedy)
    good = abs(offset_s) * 1e3 < CLOCK_MS
    return judged(f"{offset_s * 1e3:.3f} ms", wanted, good, "wait until chrony has settled", "warn")


def open_files(node: InspectedNode, expected: Expected) -> Finding:
    files = node.host.open_files
    remedy = f"set `ulimit -n {OPEN_FILES}` (LimitNOFILE in systemd) where `ray start` runs"
    return judged(f"{files:g}", f"at least {OPEN_FILES} files", files >= OPEN_FILES, remedy)


def listen_backlog(node: InspectedNode, expected: Expected) -> Finding:
    value = node.host.listen_backlog
    remedy = f"sysctl -w net.core.somaxconn={LISTEN_BACKLOG}"
    wanted = f"at least {LISTEN_BACKLOG} connections"
    return judged(_number(value), wanted, (value or 0) >= LISTEN_BACKLOG, remedy, "warn")


def disk(node: InspectedNode, expected: Expected) -> Finding:
    free = 100 * node.host.disk_free
    remedy = "free the disk with Ray's folder, or start Ray with --temp-dir elsewhere"
    wanted = f"at least {DISK_FREE_PERCENT} % free"
    return judged(f"{free:.0f} % free", wanted, free >= DISK_FREE_PERCENT, remedy)


def http_port(node: InspectedNode, expected: Expected) -> Finding | None:
    port = expected.http_port
    if not port:
        return None
    taken = port in node.host.ports_taken
    remedy = f"stop what listens there (`ss -ltnp 'sport = :{port}'`; an old Serve: `serve shutdown`)"
    return judged(f"{port} {'taken' if taken else 'free'}", f"{port} free", not taken, remedy)


def front_streams(node: InspectedNode, expected: Expected) -> Finding | None:
    """Streams of HAProxy in a joined cluster; our own Serve gets its settings from us."""
    if not expected.http_port:
        return None
    value = node.host.shown.get("RAY_SERVE_HAPROXY_MAXCONN")
    figure = f"{value or RAY_MAXCONN} streams" + ("" if value else " (Ray's default)")
    streams = int(value) if value and value.isdigit() else RAY_MAXCONN
    remedy = f"more wait in its queue, as TTFT: set RAY_SERVE_HAPROXY_MAXCONN={MOST_STREAMS} on all nodes"
    return judged(figure, f"at least {MOST_STREAMS}", streams >= MOST_STREAMS, remedy, "warn")


def replica_ports(node: InspectedNode, expected: Expected) -> Finding:
    free = len(set(REPLICA_PORTS) - node.host.ports_taken)
    span = f"{REPLICA_PORTS[0]}-{REPLICA_PORTS[-1]}"
    remedy = "stop what listens there, or move RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT on all nodes"
    figure, wanted = f"{free} of {len(REPLICA_PORTS)} free", f"at least {FREE_REPLICA_PORTS} ports of {span}"
    return judged(figure, wanted, free >= FREE_REPLICA_PORTS, remedy)


def shared_memory(node: InspectedNode, expected: Expected) -> Finding:
    least_gib = SHARED_MEMORY_GIB if expected.needs_gpus else SHARED_MEMORY_RAY_GIB
    there = node.host.shared_memory_bytes
    remedy = f"mount /dev/shm with {least_gib} GiB (docker --shm-size, or an emptyDir of medium Memory)"
    good = (there or 0) >= least_gib * GIB
    return judged(None if there is None else size(there), f"at least {least_gib} GiB", good, remedy)


def nps(node: InspectedNode, expected: Expected) -> Finding:
    nodes = node.host.numa_nodes_per_socket
    figure = None if nodes is None else f"{nodes:g} per socket"
    return judged(figure, "1 per socket (NPS1)", nodes == 1, "set NPS1 in the BIOS", "warn")


def weights(node: InspectedNode, expected: Expected) -> Finding | None:
    folder = node.host.weights
    wanted = f"readable in {expected.model_path}"
    if folder is None:
        figure = "engine.model_path is empty: vLLM looks the model up by its name"
        remedy = "set engine.model_path to a folder that every node has"
        return Finding("unknown", figure, "a folder on every node", remedy) if expected.needs_gpus else None
    if isinstance(folder, Weights):
        return Finding("pass", f"{folder.bytes / GIB:.1f} GiB in {folder.files} files", wanted)
    return Finding("fail", folder, wanted, "mount or copy the weights there, or set engine.model_path")


def device_variables(node: InspectedNode, expected: Expected) -> Finding:
    """Ray refuses ROCR alone, and lists of HIP and CUDA that differ hide GPUs from one of two layers."""
    devices = {name: value for name, value in node.host.shown.items() if name.endswith("_VISIBLE_DEVICES")}
    hip, cuda = devices.get("HIP_VISIBLE_DEVICES"), devices.get("CUDA_VISIBLE_DEVICES")
    alone = "ROCR_VISIBLE_DEVICES" in devices and hip is None
    differ = hip is not None and cuda is not None and hip != cuda
    figure = ", ".join(f"{name}={value}" for name, value in devices.items()) or "none set"
    remedy = "unset ROCR_, HIP_ and CUDA_VISIBLE_DEVICES where `ray start` runs; Ray sets them itself"
    return judged(figure, "none, or HIP alone, or HIP and CUDA equal", not (alone or differ), remedy)


def vllm_variables(node: InspectedNode, expected: Expected) -> Finding:
    unknown, wanted = node.host.unknown_variables, "known to the installed vLLM"
    if unknown is None:
        return Finding("unknown", "vLLM is not installed or does not report it", wanted)
    remedy = "vLLM ignores them: remove or correct them (docs of the installed version)"
    return judged(", ".join(unknown) or "all known", wanted, not unknown, remedy, "warn")


def sleep_state(node: InspectedNode, expected: Expected) -> Finding:
    return _switched_off(node.host.c2_on, "cpupower idle-set -d 2 on the host")


def smt(node: InspectedNode, expected: Expected) -> Finding:
    remedy = "switch SMT off in the BIOS, or by /sys/devices/system/cpu/smt/control"
    return _switched_off(node.host.smt_on, remedy)


def _switched_off(on: bool | None, remedy: str) -> Finding:
    figure = None if on is None else ("on" if on else "off")
    return judged(figure, "off", on is False, remedy, "warn")


def locked_memory(node: InspectedNode, expected: Expected) -> Finding:
    limit = size(node.host.locked_memory_bytes)
    remedy = "set `ulimit -l unlimited` (docker --ulimit memlock=-1) where `ray start` runs"
    return judged(limit, "unlimited", limit == "unlimited", remedy, "warn")


def numa_balancing(node: InspectedNode, expected: Expected) -> Finding:
    value = node.host.numa_balancing
    return judged(_number(value), "0", value == 0, "sysctl -w kernel.numa_balancing=0 on the host")


def governor(node: InspectedNode, expected: Expected) -> Finding:
    figure = ", ".join(sorted(node.host.governors or ())) or None
    remedy = "cpupower frequency-set -g performance on the host"
    return judged(figure, "performance", figure == "performance", remedy, "warn")


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


HOST_CHECKS = (
    NodeCheck("clock", "every", clock, strict=True),
    NodeCheck("chrony", "every", ntp),
    NodeCheck("open files", "every", open_files),
    NodeCheck("listen backlog", "every", listen_backlog),
    NodeCheck("disk of Ray's folder", "every", disk),
    NodeCheck("Serve's HTTP port", "head", http_port, strict=True),
    NodeCheck("HAProxy's streams", "head", front_streams),
    NodeCheck("replicas' ports", "serving", replica_ports, strict=True),
    NodeCheck("weights", "serving", weights, strict=True),
    NodeCheck("device variables", "serving", device_variables),
    NodeCheck("VLLM_* variables", "serving", vllm_variables),
    NodeCheck("/dev/shm", "serving", shared_memory),
    NodeCheck("locked memory", "serving", locked_memory),
    NodeCheck("NUMA balancing", "serving", numa_balancing),
    NodeCheck("CPU governor", "serving", governor),
    NodeCheck("CPU sleep state C2", "serving", sleep_state, amd=True),
    NodeCheck("SMT", "serving", smt, amd=True),
    NodeCheck("NUMA nodes", "serving", nps, amd=True),
)
