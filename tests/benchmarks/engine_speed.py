"""Steps per CPU second of the engine model, and how much faster than the clock it simulates.

python tests/benchmarks/engine_speed.py
"""

import os
import time

import numpy as np

from conf import load
from conf.schema import SimulatedEngine
from serve_apps.engine_model import Engine, GenerateRequest, VirtualService

CLOSED_STEPS = 20_000
VIRTUAL_S = 1800.0


def engine() -> Engine:
    experiment = load()
    spec = experiment.engine
    assert isinstance(spec, SimulatedEngine)
    return Engine(spec, experiment.model, experiment.hardware, experiment.layout)


def closed_loop(running: int) -> float:
    """Steps per CPU second with `running` requests of 5600/140 in the batch."""
    target, now_s, next_id = engine(), 0.0, 0
    start = time.process_time()
    for _ in range(CLOSED_STEPS):
        while target.running + target.waiting < running:
            target.add(GenerateRequest(next_id, 5600, 140), now_s)
            next_id += 1
        now_s = max(now_s, target.ready_s())
        step = target.step(now_s)
        now_s = step.end_s if step else now_s
    return CLOSED_STEPS / (time.process_time() - start)


def open_loop(rate_qps: float) -> float:
    """Virtual seconds per CPU second of one replica under Poisson arrivals of 5600/140."""
    service = VirtualService([engine()])
    due_s = np.cumsum(np.random.default_rng(1).exponential(1 / rate_qps, int(rate_qps * VIRTUAL_S)))
    for key, at_s in enumerate(due_s.tolist()):
        service.submit(key, at_s, 5600, 140)
    start = time.process_time()
    service.advance(VIRTUAL_S)
    return VIRTUAL_S / (time.process_time() - start)


if __name__ == "__main__":
    print(f"machine load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    base = closed_loop(8)
    print(f"closed loop,   8 running: {base:9.0f} steps per CPU s")
    for running in (30, 128):
        rate = closed_loop(running)
        print(
            f"closed loop, {running:3d} running: {rate:9.0f} steps per CPU s  ({rate / base:.2f} x that of 8)"
        )
    for rate_qps in (1.0, 3.0, 5.0):
        print(f"open loop, {rate_qps:.0f} QPS: {open_loop(rate_qps):6.0f} x real time")
