"""From making a fleet, in a Ray session that is up, to the first request at a server; the goal is 2 s.

python -m tests.benchmarks.fleet_start
"""

import os
import re
import tempfile
import time
from pathlib import Path

import numpy as np

from cluster.ray_session.session import open_session
from conf import load
from loadgen.fleet.client_plan import ClientPlan
from loadgen.fleet.fleet import LoadFleet
from loadgen.traffic.schedule import NS, PHASES, ArrivalSchedule
from tests.benchmarks._mock import Mock

TOKENS = 3
REPEATS = 3


def one_request(due_ns: int) -> ArrivalSchedule:
    one = np.ones(1, dtype=np.int64)
    return ArrivalSchedule(
        window_index=0,
        seq=one * 0,
        due_ns=one * due_ns,
        phase=one * PHASES.index("window"),
        input_tokens=one * 5600,
        output_tokens=one * TOKENS,
        shared_tokens=one * 0,
    )


def native_packages(pid: int) -> list[str]:
    """Packages of which a process has loaded compiled code."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return sorted(set(re.findall(r"site-packages/(\w+)", maps)))


def first_request_s() -> tuple[float, list[str]]:
    """Seconds until the server had read the first request, and what the load actor had loaded by then."""
    with Mock(ttft_ms=5, itl_ms=5, tokens=TOKENS) as mock, tempfile.TemporaryDirectory() as folder:
        experiment = load()
        plan = ClientPlan([mock.url], experiment.workload, "mock", 151936, 1, timeout_s=10.0)
        start_ns = time.monotonic_ns()
        fleet = LoadFleet(1, 1.0, plan, Path(folder), {})
        fleet.run(one_request(fleet.now_ns()), fleet.now_ns() + NS // 5)
        (member,) = fleet.members
        packages = native_packages(member.place.pid) if member.place else []
        fleet.finish(5.0)
        return (int(mock.truth().read_ns[0]) - start_ns) / NS, packages


if __name__ == "__main__":
    print(f"machine load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    with open_session(load().cluster, None):
        seen = [first_request_s() for _ in range(REPEATS)]
    print("first request after", ", ".join(f"{seconds:.2f}" for seconds, _ in seen), "s")
    print("compiled packages in the load actor:", ", ".join(seen[-1][1]))
