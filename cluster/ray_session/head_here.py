"""Whether a Ray head may run on this machine, without the seconds that Ray takes to be imported."""

import os
from pathlib import Path

PROCESSES = Path("/proc")
HEAD = b"gcs_server"
"""The process of every Ray head, as the kernel names it."""
ADDRESS = "RAY_ADDRESS"
"""Ray's environment variable with the address of a cluster."""
NO_CLUSTER = (
    f"no Ray cluster: {ADDRESS} is not set and no Ray head runs on this machine; start one with "
    "`ray start --head`, or give its address, cluster.address=HOST:PORT"
)


def is_missing(address: str, processes: Path = PROCESSES) -> bool:
    """True if `address` is "auto" and surely leads nowhere; where no process list tells, that is unknown."""
    if address != "auto" or os.environ.get(ADDRESS) or not processes.is_dir():
        return False
    return not any(_name(process) == HEAD for process in processes.glob("[0-9]*"))


def _name(process: Path) -> bytes:
    try:
        return (process / "comm").read_bytes().strip()
    except OSError:  # it has ended
        return b""
