"""`serve_apps.engine_model` with several engines against vLLM: where requests go, and where KV goes.

A split service is held to vLLM's own schedulers with a connector, on a virtual clock. The choice of a
data-parallel rank is held to vLLM's own balancer, on the same counts.
"""

import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm.v1.engine.core_client import DPLBAsyncMPClient

from conf import load
from conf.specs.experiment import Constant, Layout, SimulatedEngine
from conf.specs.layout import PrefillEngines, TransferTime
from serve_apps.engine_model.cost.links import KvLink, TransferSeconds
from serve_apps.engine_model.engine import steps
from serve_apps.engine_model.engine.kinds import EngineKind, PrefillKind, empty_arrays
from tests.vllm.moving_kv import run_pair
from tests.vllm.real_core import Log
from tests.vllm.recorded import MODEL, SPECS, Prompt, assert_same, recorded, step_time, token_ids

pytestmark = pytest.mark.vllm


@dataclass(frozen=True)
class Case:
    prompts: list[Prompt]
    limits: tuple[SimulatedEngine, SimulatedEngine]
    layout: Layout


def run_ours(case: Case) -> tuple[Log, Log]:
    """The logs of the prefill and the decode engine."""
    prefill, decode = (
        EngineKind.of(limits, MODEL, SPECS.hardware, case.layout.decode_side) for limits in case.limits
    )
    seconds, writes = TransferSeconds.of(MODEL, case.layout), case.layout.transfer_mode == "write"
    kind = replace(decode, prefill=PrefillKind(prefill, seconds, writes, 1, 1))
    (decode_log, prefill_log), _ = recorded(kind, case.prompts)
    return prefill_log, decode_log


def drawn(seed: int, writes: bool, asynchronous: bool, caching: bool) -> Case:
    """A small workload and small engines; half of them have few more blocks than a request needs."""
    draw = random.Random(seed)
    block = draw.choice((1, 4, 16))
    prompts, now_s = [], 0.0
    longest = draw.choice((60, 300, 900))
    for _ in range(draw.randint(5, 40)):
        now_s += draw.expovariate(draw.choice((5.0, 40.0, 400.0)))
        shared = draw.choice((0, 0, 16, 48, longest // 2))
        own = draw.choice((1, 16, draw.randint(1, longest)))
        prompts.append(Prompt(now_s, shared + own, draw.randint(1, 60), shared, draw.randrange(2)))
    most = max(-(-(each.input_tokens + each.output_tokens) // block) for each in prompts)
    limits = [
        SimulatedEngine(
            num_gpu_blocks=most + draw.randint(0, most) if draw.random() < 0.5 else 20 * most,
            block_size=block,
            max_num_batched_tokens=draw.choice((24, 64, 256, 1024)),
            max_num_seqs=draw.choice((2, 5, 64)),
            enable_prefix_caching=caching,
            async_scheduling=asynchronous,
            long_prefill_token_threshold=draw.choice((0, 0, 50)),
        )
        for _ in range(2)
    ]
    time = TransferTime(
        Constant(10 ** draw.uniform(7.5, 10.5), "bytes per second", "test"),
        Constant(draw.uniform(0.1, 20.0), "ms per prompt", "test"),
    )
    layout = replace(
        SPECS.layout,
        prefill=PrefillEngines(1, SPECS.layout.tensor_parallel),
        transfer=time,
        transfer_mode="write" if writes else "read",
    )
    return Case(prompts, (limits[0], limits[1]), layout)


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("caching", [False, True], ids=["no-cache", "cache"])
@pytest.mark.parametrize("writes", [False, True], ids=["read", "write"])
@pytest.mark.parametrize("seed", [1, 4, 17, 43, 49])  # tight caches: both sides preempt in some of them
def test_the_same_steps_on_both_engines(
    seed: int, writes: bool, caching: bool, asynchronous: bool, tmp_path: Path
) -> None:
    case = drawn(seed, writes, asynchronous, caching)
    engine, link = case.layout.decode_side, KvLink(TransferSeconds.of(MODEL, case.layout))
    durations = step_time(case.prompts, engine, 0), step_time(case.prompts, engine, 1)
    ours = run_ours(case)
    real = run_pair(token_ids(case.prompts), case.limits, durations, link, writes, tmp_path)
    for here, there, side in zip(ours, real, ("prefill", "decode"), strict=True):
        assert_same(here, there, side)


RANKS = 8


def front_end() -> Any:
    """vLLM's client without its processes: the only front end of its engines."""
    client = object.__new__(DPLBAsyncMPClient)
    client.client_count, client.eng_start_index = 1, 0
    client.reqs_in_flight, client.engine_inflight = {}, Counter()
    client.core_engines = [bytes([rank]) for rank in range(RANKS)]
    client.lb_engines = [[0, 0, 0.0] for _ in range(RANKS)]
    return client


@pytest.mark.parametrize("seed", range(5))
def test_requests_go_to_the_ranks_that_vllm_takes(seed: int) -> None:
    rng, client = np.random.default_rng(seed), front_end()
    specs = load(["layout=dp8_attention_ep8"])
    kind = EngineKind.of(SimulatedEngine(), specs.model, specs.hardware, specs.layout)
    arrays, _ = empty_arrays([(kind, 1)], [0])
    engines = arrays.engines
    taken: list[int] = []
    for number in range(400):
        if rng.random() < 0.1:  # the counts of a while ago are published
            counts = [
                (int(rng.integers(5)), int(rng.integers(20)), float(rng.random())) for _ in range(RANKS)
            ]
            columns = zip(*counts, strict=True)
            engines["told_waiting"], engines["told_running"], engines["told_usage"] = map(list, columns)
            engines["sent_since"] = 0
            client.lb_engines = [list(each) for each in counts]
        while taken and rng.random() < 0.45:  # some end
            rank = taken.pop(int(rng.integers(len(taken))))
            engines["open"][rank] -= 1
            client.engine_inflight[client.core_engines[rank]] -= 1
        request = SimpleNamespace(request_id=f"{number}", data_parallel_rank=None, pooling_params=None)
        theirs = client.core_engines.index(client.get_core_engine_for_request(request))
        rank = int(steps.choose_rank(arrays.address, 0, 0.0))
        engines["open"][rank] += 1
        assert rank == theirs, number
        taken.append(theirs)
