"""Facts of a node on which every check passes."""

import math

from cluster.preflight.gpus import Gpu
from cluster.preflight.node_facts import Host, Weights

HBM = 262128 * 2**20


GIB = 2**30


def healthy_gpu(index: int) -> Gpu:
    peers = frozenset(range(8)) - {index}
    return Gpu(index, "AMD Instinct MI325X", "gfx942", "6.12.12", 0.3 * GIB, 0, 177, index // 4, peers, HBM)


HEALTHY = Host(
    versions={
        "python": "3.12.3",
        "ray": "2.60.0",
        "maxqps": "0.1.0 source 1",
        "vllm": "0.29.0",
        "torch": "2.9",
    }
    | {"ROCm": "7.0.2", "GPU driver": "6.12.12"},
    gpus=tuple(map(healthy_gpu, range(8))),
    amdsmi=True,
    environment={"NCCL_MIN_NCHANNELS": "1f"},
    shown={"RAY_SERVE_HAPROXY_MAXCONN": "30000"},
    unknown_variables=(),
    image="sha256:1",
    weights=Weights(240 * GIB, 24, "abc"),
    ports_taken=frozenset(),
    disk_free=0.5,
    open_files=1048576,
    locked_memory_bytes=math.inf,
    shared_memory_bytes=64 * GIB,
    listen_backlog=4096,
    numa_balancing=0,
    governors=frozenset({"performance"}),
    c2_on=False,
    smt_on=False,
    numa_nodes_per_socket=1.0,
    ntp_offset_s=1e-5,
)
