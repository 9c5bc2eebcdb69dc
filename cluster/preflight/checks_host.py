"""Checks of a node besides its GPUs, and facts that must be equal on all nodes: judges and their tables."""

from collections.abc import Sequence

from cluster.preflight.checks import (
    ALL_NODES,
    GIB,
    Comparison,
    Expected,
    Finding,
    InspectedNode,
    NodeCheck,
    Status,
    Threshold,
    Where,
    judged,
    size,
)
from cluster.preflight.node_facts import REPLICA_PORTS, Weights
from cluster.ray_session.serve_settings import MOST_STREAMS

OPEN_FILES = Threshold(
    65536, "files", "ROCm/cvs host checks; a stream is a file in the client, proxy and replica"
)
LISTEN_BACKLOG = Threshold(
    4096, "connections", "Linux default since 5.4; as many as HAProxy serves on a node"
)
SHARED_MEMORY = Threshold(64, "GiB", "KubeRay and vLLM on 8 GPUs: /dev/shm of 64 to 128 GiB")
SHARED_MEMORY_RAY = Threshold(
    0.1, "GiB", "object store of a session of our own; with less Ray puts it on disk"
)
DISK_FREE = Threshold(
    5, "% free", "Ray spills no object to a disk filled to 95 % (local_fs_capacity_threshold)"
)
FREE_REPLICA_PORTS = Threshold(64, "ports", "judged: eight replicas and their successors, eight times over")
CLOCK_OFFSET = Threshold(1, "ms", "ROCm/cvs host checks (chrony)")
CLOCK_OFFSET_MOST = Threshold(50, "ms", "beyond it the fleet of load actors refuses a common start")
RAY_MAXCONN = 4096
"""Default connections of HAProxy (RAY_SERVE_HAPROXY_MAXCONN of Ray 2.60)."""


def clock(seen: InspectedNode, expected: Expected) -> Finding:
    """Clock offset from the driver; unknown if the uncertainty of the measurement decides."""
    wanted = f"within {CLOCK_OFFSET} of the driver"
    if seen.clock is None:
        return Finding("unknown", "not measured", wanted)
    offset_ms, spread_ms = abs(seen.clock.offset_s) * 1e3, seen.clock.uncertainty_s * 1e3
    figure = f"{seen.clock.offset_s * 1e3:+.2f} ms ± {spread_ms:.2f} ms"
    if offset_ms + spread_ms < CLOCK_OFFSET.value:
        return Finding("pass", figure, wanted)
    if offset_ms - spread_ms < CLOCK_OFFSET.value:
        return Finding(
            "unknown", figure, wanted, "the round trip is too slow to tell; look at `chronyc tracking`"
        )
    bad = offset_ms - spread_ms >= CLOCK_OFFSET_MOST.value
    return Finding(
        "fail" if bad else "warn", figure, wanted, "synchronise the clocks of all nodes with chrony"
    )


def ntp(seen: InspectedNode, expected: Expected) -> Finding:
    offset_s = seen.host.ntp_offset_s
    wanted = f"within {CLOCK_OFFSET} of NTP"
    if offset_s is None:
        return Finding(
            "unknown", "not reported by chrony", wanted, "install chrony, and wait until it is synchronised"
        )
    good = abs(offset_s) * 1e3 < CLOCK_OFFSET.value
    return judged(f"{offset_s * 1e3:.3f} ms", wanted, good, "wait until chrony has settled", "warn")


def open_files(seen: InspectedNode, expected: Expected) -> Finding:
    files = seen.host.open_files
    remedy = f"set `ulimit -n {OPEN_FILES.value}` (LimitNOFILE in systemd) where `ray start` runs"
    return judged(f"{files:g}", f"at least {OPEN_FILES}", files >= OPEN_FILES.value, remedy)


def listen_backlog(seen: InspectedNode, expected: Expected) -> Finding:
    value = seen.host.listen_backlog
    figure = None if value is None else str(value)
    remedy = f"sysctl -w net.core.somaxconn={LISTEN_BACKLOG.value}"
    return judged(figure, f"at least {LISTEN_BACKLOG}", (value or 0) >= LISTEN_BACKLOG.value, remedy, "warn")


def disk(seen: InspectedNode, expected: Expected) -> Finding:
    free = 100 * seen.host.disk_free
    remedy = "free the disk with Ray's folder, or start Ray with --temp-dir elsewhere"
    return judged(f"{free:.0f} % free", f"at least {DISK_FREE}", free >= DISK_FREE.value, remedy)


def http_port(seen: InspectedNode, expected: Expected) -> Finding | None:
    port = expected.http_port
    if not port:
        return None
    taken = port in seen.host.ports_taken
    remedy = f"stop what listens there (`ss -ltnp 'sport = :{port}'`; an old Serve: `serve shutdown`)"
    return judged(f"{port} {'taken' if taken else 'free'}", f"{port} free", not taken, remedy)


def front_streams(seen: InspectedNode, expected: Expected) -> Finding | None:
    """Streams of HAProxy in a joined cluster; our own Serve gets its settings from us."""
    if not expected.http_port:
        return None
    value = seen.host.shown.get("RAY_SERVE_HAPROXY_MAXCONN")
    figure = f"{value or RAY_MAXCONN} streams" + ("" if value else " (Ray's default)")
    streams = int(value) if value and value.isdigit() else RAY_MAXCONN
    remedy = f"more wait in its queue, as TTFT: set RAY_SERVE_HAPROXY_MAXCONN={MOST_STREAMS} on all nodes"
    return judged(figure, f"at least {MOST_STREAMS}", streams >= MOST_STREAMS, remedy, "warn")


def replica_ports(seen: InspectedNode, expected: Expected) -> Finding:
    free = len(set(REPLICA_PORTS) - seen.host.ports_taken)
    span = f"{REPLICA_PORTS[0]}-{REPLICA_PORTS[-1]}"
    remedy = "stop what listens there, or move RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT on all nodes"
    figure, wanted = f"{free} of {len(REPLICA_PORTS)} free", f"at least {FREE_REPLICA_PORTS} of {span}"
    return judged(figure, wanted, free >= FREE_REPLICA_PORTS.value, remedy)


def shared_memory(seen: InspectedNode, expected: Expected) -> Finding:
    least = SHARED_MEMORY if expected.needs_gpus else SHARED_MEMORY_RAY
    there = seen.host.shared_memory_bytes
    figure = None if there is None else size(there)
    remedy = f"mount /dev/shm with {least} (docker --shm-size, or an emptyDir of medium Memory)"
    return judged(figure, f"at least {least}", (there or 0) >= least.value * GIB, remedy)


def locked_memory(seen: InspectedNode, expected: Expected) -> Finding:
    limit = size(seen.host.locked_memory_bytes)
    remedy = "set `ulimit -l unlimited` (docker --ulimit memlock=-1) where `ray start` runs"
    return judged(limit, "unlimited", limit == "unlimited", remedy, "warn")


def numa_balancing(seen: InspectedNode, expected: Expected) -> Finding:
    value = seen.host.numa_balancing
    return judged(
        None if value is None else str(value),
        "0",
        value == 0,
        "sysctl -w kernel.numa_balancing=0 on the host",
    )


def governor(seen: InspectedNode, expected: Expected) -> Finding:
    names = seen.host.governors
    figure = None if names is None else ", ".join(sorted(names))
    remedy = "cpupower frequency-set -g performance on the host"
    return judged(figure, "performance", names == frozenset({"performance"}), remedy, "warn")


def sleep_state(seen: InspectedNode, expected: Expected) -> Finding:
    return _switched_off(seen.host.c2_on, "cpupower idle-set -d 2 on the host")


def smt(seen: InspectedNode, expected: Expected) -> Finding:
    return _switched_off(
        seen.host.smt_on, "switch SMT off in the BIOS, or by /sys/devices/system/cpu/smt/control"
    )


def _switched_off(on: bool | None, remedy: str) -> Finding:
    figure = None if on is None else ("on" if on else "off")
    return judged(figure, "off", on is False, remedy, "warn")


def nps(seen: InspectedNode, expected: Expected) -> Finding:
    nodes = seen.host.numa_nodes_per_socket
    figure = None if nodes is None else f"{nodes:g} per socket"
    return judged(figure, "1 per socket (NPS1)", nodes == 1, "set NPS1 in the BIOS", "warn")


def weights(seen: InspectedNode, expected: Expected) -> Finding | None:
    folder = seen.host.weights
    wanted = f"readable in {expected.model_path}"
    if folder is None:
        figure = "engine.model_path is empty: vLLM looks the model up by its name"
        remedy = "set engine.model_path to a folder that every node has"
        return Finding("unknown", figure, "a folder on every node", remedy) if expected.needs_gpus else None
    if isinstance(folder, Weights):
        return Finding("pass", f"{folder.bytes / GIB:.1f} GiB in {folder.files} files", wanted)
    return Finding("fail", folder, wanted, "mount or copy the weights there, or set engine.model_path")


def device_variables(seen: InspectedNode, expected: Expected) -> Finding:
    """Ray refuses ROCR alone, and lists of HIP and CUDA that differ hide GPUs from one of two layers."""
    devices = {name: value for name, value in seen.host.shown.items() if name.endswith("_VISIBLE_DEVICES")}
    hip, cuda = devices.get("HIP_VISIBLE_DEVICES"), devices.get("CUDA_VISIBLE_DEVICES")
    alone = "ROCR_VISIBLE_DEVICES" in devices and hip is None
    differ = hip is not None and cuda is not None and hip != cuda
    figure = ", ".join(f"{name}={value}" for name, value in devices.items()) or "none set"
    remedy = "unset ROCR_, HIP_ and CUDA_VISIBLE_DEVICES where `ray start` runs; Ray sets them itself"
    return judged(figure, "none, or HIP alone, or HIP and CUDA equal", not (alone or differ), remedy)


def vllm_variables(seen: InspectedNode, expected: Expected) -> Finding:
    unknown = seen.host.unknown_variables
    if unknown is None:
        return Finding(
            "unknown", "vLLM is not installed or does not report it", "known to the installed vLLM"
        )
    remedy = "vLLM ignores them: remove or correct them (docs of the installed version)"
    return judged(
        ", ".join(unknown) or "all known", "known to the installed vLLM", not unknown, remedy, "warn"
    )


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


def _version(name: str, where: Where, remedy: str, needed_by: str | None = None) -> Comparison:
    return Comparison(name, where, lambda seen: seen.host.versions.get(name), remedy, needed_by)


def _weights_digest(seen: InspectedNode) -> str | None:
    folder = seen.host.weights
    return f"digest {folder.digest}" if isinstance(folder, Weights) else None


def _gpu_kind(seen: InspectedNode) -> str | None:
    kinds = sorted({f"{gpu.name or 'GPU'} {gpu.arch or ''}".strip() for gpu in seen.gpus})
    return f"{len(seen.gpus)} x {', '.join(kinds)}" if kinds else None


_SAME_IMAGE = "start all nodes from one image"
_NO_MIXTURE = "one kind of GPU per run: leave the odd node out"
_NO_DIGEST = "set MAXQPS_IMAGE_DIGEST in the containers"
COMPARISONS = (
    _version("python", "every", _SAME_IMAGE, needed_by=""),
    _version("ray", "every", _SAME_IMAGE, needed_by=""),
    _version("maxqps", "every", "install one wheel on all nodes, or submit the folder", needed_by=""),
    _version("vllm", "serving", "install the same vLLM on all serving nodes", needed_by="vllm"),
    _version("torch", "serving", _SAME_IMAGE, needed_by="vllm"),
    _version("ROCm", "serving", _SAME_IMAGE),
    _version("GPU driver", "serving", "install the same driver on all hosts"),
    Comparison("GPUs equal", "serving", _gpu_kind, _NO_MIXTURE),
    Comparison("image", "serving", lambda seen: seen.host.image, _SAME_IMAGE, unreported=_NO_DIGEST),
    Comparison("weights equal", "serving", _weights_digest, "copy or mount one revision", of_model=True),
)


def environments(nodes: Sequence[InspectedNode]) -> Finding | None:
    """The finding on variables that engines read, which must be equal on all serving nodes."""
    reported = [seen.host.environment for seen in nodes if seen.serves]
    if not reported:
        return None
    names = sorted(set().union(*reported))
    differ = [name for name in names if len({environment.get(name) for environment in reported}) > 1]
    figure = f"{', '.join(differ)} differ" if differ else f"{len(names)} variables"
    remedy = "start Ray with one environment on all nodes" if differ else ""
    status: Status = "fail" if differ else "pass"
    return Finding(status, figure, "equal on all nodes", remedy, check="environment", node=ALL_NODES)
