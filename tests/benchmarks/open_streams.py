"""Streams that one load actor's process holds open at once: 10,000 from one, 20,000 from two.

They begin at 1000 a second against a compiled server that lets none end before the last has begun. Memory
is what the process grew by until then, bodies and plan not counted, divided by the streams.

python -m tests.benchmarks.open_streams
"""

import os
import resource
from contextlib import ExitStack

import numpy as np

from tests.benchmarks._clients import Child, Seen, begin, poisson_ns
from tests.benchmarks._mock import Mock

STREAMS, RAMP_QPS = 10_000, 1000
TTFT_MS, ITL_MS, TOKENS = 200, 1500, 10
SPARE_FILES = 100


def hold(processes: int) -> list[Seen]:
    """What each of `processes` clients saw, all at once, each with a server of its own."""
    due_ns = poisson_ns(RAMP_QPS, 2 * STREAMS / RAMP_QPS, seed=1)[:STREAMS]
    with ExitStack() as stack:
        mocks = [
            stack.enter_context(Mock(ttft_ms=TTFT_MS, itl_ms=ITL_MS, tokens=TOKENS)) for _ in range(processes)
        ]
        children: list[Child] = [begin("ours", None, mock.url, due_ns, TOKENS) for mock in mocks]
        return [child.result() for child in children]


def describe(seen: Seen) -> str:
    p50, p99, most = np.quantile(seen.late_ms, [0.5, 0.99, 1.0])
    failed = {kind: count for kind, count in seen.statuses.items() if kind != "ok"}
    return (
        f"  {seen.statuses['ok']} whole, failed: {failed or 'none'}; "
        f"send lag p50 {p50:.2f}, p99 {p99:.2f}, max {most:.1f} ms; "
        f"{seen.memory_bytes / STREAMS / 1e3:.2f} kB per stream; share {seen.run_share:.2f}"
    )


if __name__ == "__main__":
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < STREAMS + SPARE_FILES:
        raise SystemExit(f"open_streams: `ulimit -Hn` is {files}, {STREAMS + SPARE_FILES} are needed")
    for processes in (1, 2):
        print(f"{processes} x {STREAMS} streams, machine load {os.getloadavg()[0]:.2f}")
        for seen in hold(processes):
            print(describe(seen), flush=True)
