"""Separation of the replicas of one node: caches, and the memory of the NUMA node of their devices."""

from collections.abc import Sequence

NUMA_NODES = 2
"""NUMA nodes of an MI325X node, each with half of its GPUs: DigitalOcean's post on Character.ai of
13 January 2026."""
CACHES = ("TRITON_CACHE_DIR", "VLLM_CACHE_ROOT")
"""Cache folders written while kernels are compiled; replicas that share them disturb each other.

XDG_CACHE_HOME stays as it is: downloaded weights lie below it, which all replicas share.
"""


def own_caches(devices: Sequence[int | str], home: str) -> dict[str, str]:
    """Variables of the caches of the replica on `devices`, below `home`; empty without devices.

    The same devices find the same caches again, so that only the first start compiles.
    """
    if not devices:
        return {}
    gpus = "-".join(map(str, devices))
    return {name: f"{home}/.cache/maxqps/gpus-{gpus}/{name.lower()}" for name in CACHES}


def near(devices: Sequence[int], gpus_per_node: int) -> list[str]:
    """`numactl` for devices of one NUMA node; empty if they are in several."""
    half = max(1, gpus_per_node // NUMA_NODES)
    nodes = {device // half for device in devices}
    return ["numactl", f"--cpunodebind={min(nodes)}", f"--membind={min(nodes)}"] if len(nodes) == 1 else []
