"""Steps per CPU second of the engine model, and how much faster than the clock it simulates.

python -m tests.benchmarks.engine_speed
"""

import os
import time
from dataclasses import replace

import numpy as np

from conf import load
from conf.specs.experiment import SimulatedEngine
from serve_apps.engine_model import Engine, GenerateRequest
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.service.service import Requests, serve
from tests.support.virtual.virtual_service import VirtualService

CLOSED_STEPS = 20_000
VIRTUAL_S = 1800.0
LOOP_TURNS = 5_000_000
LOOP_REQUESTS = 200_000


def engine(caching: bool = True) -> Engine:
    experiment = load()
    spec = experiment.engine
    assert isinstance(spec, SimulatedEngine)
    spec = replace(spec, enable_prefix_caching=caching)
    return Engine(EngineKind.of(spec, experiment.model, experiment.hardware, experiment.layout))


def closed_loop(
    running: int, shared_blocks: int = 0, output_tokens: int = 140, caching: bool = True
) -> float:
    """Steps per CPU second, taken one by one, with `running` requests of 5600 tokens in the batch.

    Their first `shared_blocks` KV blocks are the same.
    """
    target, hashes = engine(caching), tuple(range(shared_blocks))
    for _ in range(running):
        target.add(GenerateRequest(5600, output_tokens, hashes), 0.0)
    now_s = 0.0
    start = time.process_time()
    for _ in range(CLOSED_STEPS):
        now_s = max(now_s, target.ready_s())
        end_s = target.begin_step(now_s)
        if end_s is None:
            continue
        now_s = end_s
        for _ in target.end_step():
            target.add(GenerateRequest(5600, output_tokens, hashes), now_s)
    return CLOSED_STEPS / (time.process_time() - start)


def open_loop(rate_qps: float) -> float:
    """Virtual seconds per CPU second of one replica under Poisson arrivals of 5600/140."""
    service = VirtualService(engine().kind)
    due_s = np.cumsum(np.random.default_rng(1).exponential(1 / rate_qps, int(rate_qps * VIRTUAL_S)))
    for key, at_s in enumerate(due_s.tolist()):
        service.submit(key, at_s, 5600, 140)
    start = time.process_time()
    service.advance(VIRTUAL_S)
    return VIRTUAL_S / (time.process_time() - start)


SERVICES = {
    "5600/140, 2 QPS": ([], LOOP_REQUESTS, 2.0, 5600, 140),
    "5600/140, 3 QPS": ([], LOOP_REQUESTS, 3.0, 5600, 140),
    "tight cache, one at a time": (["engine.num_gpu_blocks=700"], 2000, 4.0, 5600, 140),
    "tight cache, 50 at a time": (["engine.num_gpu_blocks=18000"], 2000, 6.0, 5600, 140),
    "tight cache, long answers": (["engine.num_gpu_blocks=8000"], 2000, 12.0, 200, 600),
    "tight cache, answers of 1000": (["engine.num_gpu_blocks=700"], 1000, 3.0, 500, 1000),
    "split": (["layout=2p1d"], 3000, 6.0, 5600, 140),
    "split, tight cache": (["layout=2p1d", "engine.num_gpu_blocks=900"], 2000, 6.0, 5600, 140),
    "ranks": (["layout=dp8_attention_ep8"], 3000, 3.0, 5600, 140),
    "ranks, tight cache": (["layout=dp8_attention_ep8", "engine.num_gpu_blocks=800"], 1500, 3.0, 5600, 140),
}
"""Changes of the default, requests, their rate (QPS), and their tokens in and out."""


def at_once(words: list[str], count: int, rate_qps: float, input_tokens: int, output_tokens: int) -> float:
    """Steps per CPU second of `loop` under Poisson arrivals, after a run that compiles it."""
    experiment = load(words)
    assert isinstance(experiment.engine, SimulatedEngine)
    machine = EngineKind.of(experiment.engine, experiment.model, experiment.hardware, experiment.layout)
    sent_s = np.cumsum(np.random.default_rng(1).exponential(1 / rate_qps, count))
    columns = [np.full(count, tokens) for tokens in (input_tokens, output_tokens, 0)]
    serve(machine, Requests(sent_s[:10], [column[:10] for column in columns]))
    start = time.process_time()
    steps = serve(machine, Requests(sent_s, columns)).work["steps"]
    return steps / (time.process_time() - start)


def empty_loop_ns() -> float:
    """CPU time of one turn of an empty loop: what this machine's share of a core is worth now."""
    start = time.process_time()
    for _ in range(LOOP_TURNS):
        pass
    return (time.process_time() - start) / LOOP_TURNS * 1e9


if __name__ == "__main__":
    print(f"machine load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    print(f"one turn of an empty loop {empty_loop_ns():.0f} ns of CPU time")
    base = closed_loop(8)
    print(f"closed loop,   8 running: {base:9.0f} steps per CPU s")
    for running, shared_blocks, output_tokens, caching in (
        (64, 0, 140, True),
        (64, 175, 140, True),
        (64, 332, 140, True),
        (64, 0, 140, False),
        (64, 0, 2000, True),
        (256, 0, 140, True),
    ):
        rate = closed_loop(running, shared_blocks, output_tokens, caching)
        print(
            f"closed loop, {running:3d} running, {shared_blocks:3d} of 350 blocks shared, "
            f"{output_tokens:4d} out, cache {'on ' if caching else 'off'}: {rate:9.0f} steps per CPU s "
            f"({rate / base:.2f} x the first)"
        )
    for name, service in SERVICES.items():
        rate = at_once(*service)
        print(f"one call, {name}: {rate:9.0f} steps per CPU s ({rate / base:.2f} x the first)")
    for rate_qps in (1.0, 2.0, 3.0):
        print(f"open loop, {rate_qps:.0f} QPS: {open_loop(rate_qps):6.0f} x real time")
