"""Prefix reuse of a recorded trace, and what caches of several sizes serve of it by the engine model.

examples:
  python -m tests.benchmarks.trace_reuse conversation_trace.jsonl     the trace at its own times
  python -m tests.benchmarks.trace_reuse conversation_trace.jsonl workload.trace_span_s=600
"""

import sys
from collections.abc import Sequence

import numpy as np

from conf import load
from conf.specs.experiment import SimulatedEngine
from loadgen.traffic import trace
from loadgen.traffic.traffic import Traffic
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.service.prefixes import trace_pieces
from serve_apps.engine_model.service.service import Replicas, Requests, serve

UNLIMITED = 10_000_000
"""KV blocks of 16 tokens, more than any of the published traces fills."""
NODES = (1, 4, 16)
LONGEST = "engine.max_model_len=262144"
"""Room for the longest prompt of the published traces."""


def main(words: Sequence[str]) -> int:
    path, *rest = words
    experiment = load(["workload=trace", f"workload.trace={path}", *rest])
    traffic = Traffic(experiment.workload)
    recorded = traffic.trace
    assert recorded is not None
    seen = {hash_ for blocks in recorded.blocks for hash_ in blocks}
    blocks, mean = sum(map(len, recorded.blocks)), recorded.input_tokens.mean()
    print(f"{len(recorded)} requests, {recorded.mean_qps:.2f} QPS, {mean:.0f} tokens in")
    by_block = 1 - len(seen) / max(1, blocks)
    print(f"reuse by its hashes: {by_block:.2%} of blocks, {trace.reuse(recorded):.2%} of prompt tokens")
    schedule = traffic.replay(0, None, window_index=0, first_seq=0, seed=experiment.seed)
    assert schedule.begins is not None, "the trace shares no prefixes"
    shared = trace_pieces(schedule.begins, np.zeros(len(schedule), np.int64))
    lengths = [schedule.input_tokens, schedule.output_tokens, np.zeros_like(schedule.seq)]
    assert isinstance(experiment.engine, SimulatedEngine)
    for replicas in NODES:
        for size in (UNLIMITED, None):
            engine = load([LONGEST, *([f"engine.num_gpu_blocks={size}"] if size else [])]).engine
            assert isinstance(engine, SimulatedEngine)
            spec = EngineKind.of(engine, experiment.model, experiment.hardware, experiment.layout)
            served = serve(spec, Requests(schedule.due_ns / 1e9, lengths, shared), Replicas(replicas))
            hit = served.cached_tokens.sum() / schedule.input_tokens.sum()
            room = "unlimited cache" if size else f"{spec.blocks * engine.block_size:,} tokens of KV"
            print(f"{replicas:3d} nodes, {room:<26} served from the cache: {hit:.2%} of prompt tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
