"""Tests that use the GPUs of one node: each alone in PyTorch, all together for bandwidth."""

import os
import re
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

from cluster.preflight.node_facts import IMPORT_TIMEOUT_S, run_tool

DEVICE_PROBE = "import torch as t; t.ones(1, device='cuda').item(); print(t.cuda.device_count())"
TIMEOUT_S = 240.0
P2P_ONE_WAY, P2P_BOTH_WAYS, ALL_TO_ALL, ALL_REDUCE = (
    "p2p one way",
    "p2p both ways",
    "all-to-all",
    "all-reduce",
)


def visible_devices(ids: Collection[str]) -> dict[str, int | None]:
    """Number of GPUs that PyTorch sees if only one of `ids` is visible; None if it fails.

    Each id has a process of its own, which also computes, to find an id that the runtime does not accept.
    """
    with ThreadPoolExecutor() as threads:
        return dict(zip(ids, threads.map(_visible_devices, ids), strict=True))


def _visible_devices(device: str) -> int | None:
    env = {**os.environ, "HIP_VISIBLE_DEVICES": device, "CUDA_VISIBLE_DEVICES": device}
    text = run_tool([sys.executable, "-c", DEVICE_PROBE], IMPORT_TIMEOUT_S, env)
    return int(text.split()[-1]) if text else None


def measure(gpus: int) -> dict[str, float]:
    """GB/s of each bandwidth whose tool is installed and succeeds; needs idle GPUs and takes minutes."""
    p2p = run_tool(["TransferBench", "p2p"], TIMEOUT_S)
    all_to_all = run_tool(["TransferBench", "a2a"], TIMEOUT_S)
    size = ["-b", "8G", "-e", "8G", "-g", str(gpus)]
    all_reduce = run_tool(["all_reduce_perf", *size], TIMEOUT_S)
    return {**p2p_gb_s(p2p or ""), **all_to_all_gb_s(all_to_all or ""), **all_reduce_gb_s(all_reduce or "")}


def p2p_gb_s(text: str) -> Mapping[str, float]:
    """GPU-to-GPU averages, the last of four, from `TransferBench p2p`."""
    found = {}
    for name, direction in ((P2P_ONE_WAY, "UniDir"), (P2P_BOTH_WAYS, "BiDir")):
        averages = re.search(rf"Averages \(During +{direction}\):((?: +[\d.]+)+)", text)
        if averages:
            found[name] = float(averages[1].split()[-1])
    return found


def all_to_all_gb_s(text: str) -> Mapping[str, float]:
    """Lowest total of a GPU in the row RTotal of `TransferBench a2a`, whose last entry is over all GPUs."""
    totals = re.search(r"RTotal((?:[ │|]+[\d.]+)+)", text)
    numbers = [float(word) for word in re.findall(r"[\d.]+", totals[1])] if totals else []
    return {ALL_TO_ALL: min(numbers)} if numbers else {}


def all_reduce_gb_s(text: str) -> Mapping[str, float]:
    """The average bus bandwidth (busbw) of rccl-tests or nccl-tests."""
    found = re.search(r"# Avg bus bandwidth +: +([\d.]+)", text)
    return {ALL_REDUCE: float(found[1])} if found else {}
