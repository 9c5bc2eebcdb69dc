"""Thresholds of the checks, as data with their sources; reads and judges nothing."""

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number with its unit and where it comes from."""

    value: float
    unit: str
    source: str

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit}"


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
VRAM_IDLE = Threshold(1, "GiB", "judged: an idle MI300X shows about 0.3 GiB")
VRAM_OFF = Threshold(1, "%", "our choice: beyond what drivers keep back (MI300X 0.01 %, B200 0.4 %)")
MEC_FIRMWARE = Threshold(177, "or later", "ROCm 6.4.3 release notes, amdgpu driver updates")

P2P_UNIDIRECTIONAL = Threshold(33.9, "GB/s", "ROCm/cvs mi300_health_config.json, TransferBench p2p")
P2P_BIDIRECTIONAL = Threshold(43.9, "GB/s", "ROCm/cvs mi300_health_config.json, TransferBench p2p")
ALL_TO_ALL_TOTAL = Threshold(320, "GB/s", "ROCm/cvs mi300_health_config.json, TransferBench a2a, of each GPU")
ALL_REDUCE_TWO_NODES = Threshold(330, "GB/s", "ROCm/cvs rccl_config.json, busbw of 8 GiB over two nodes")
