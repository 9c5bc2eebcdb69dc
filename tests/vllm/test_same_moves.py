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

from conf.specs.experiment import Constant, Layout
from conf.specs.layout import PrefillEngines, TransferTime
from serve_apps.engine_model.cost.transfer import KvLink, TransferSeconds
from serve_apps.engine_model.scheduler.lockstep import RankBalancer
from serve_apps.engine_model.service.split_service import SplitService
from serve_apps.engine_model.service.virtual_service import SessionPrompt
from tests.vllm.moving_kv import run_pair
from tests.vllm.real_core import Limits
from tests.vllm.recorded import MODEL, SPECS, Prompt, RecordedEngine, assert_same, step_time, token_ids

pytestmark = pytest.mark.vllm


@dataclass(frozen=True)
class Case:
    prompts: list[Prompt]
    limits: tuple[Limits, Limits]
    layout: Layout


def run_ours(case: Case) -> tuple[RecordedEngine, RecordedEngine]:
    prefill, decode = (RecordedEngine(limits, case.layout.decode_side) for limits in case.limits)
    service = SplitService([prefill], [decode], case.layout, MODEL)
    for number, prompt in enumerate(case.prompts):
        lengths = prompt.input_tokens, prompt.output_tokens
        chain = prompt.hashes(case.limits[0].block_size)
        service.submit(number, prompt.at_s, *lengths, begins=SessionPrompt(-1, chain))
    service.advance(1e6)
    return prefill, decode


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
        Limits(
            blocks=most + draw.randint(0, most) if draw.random() < 0.5 else 20 * most,
            block_size=block,
            budget=draw.choice((24, 64, 256, 1024)),
            seqs=draw.choice((2, 5, 64)),
            caching=caching,
            asynchronous=asynchronous,
            long_prefill=draw.choice((0, 0, 50)),
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
    for engine, there, side in zip(ours, real, ("prefill", "decode"), strict=True):
        assert_same(engine.log(), there, side)


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
    rng, client, balancer = np.random.default_rng(seed), front_end(), RankBalancer(RANKS)
    taken: list[int] = []
    for number in range(400):
        if rng.random() < 0.1:  # the counts of a while ago are published
            counts = [
                (int(rng.integers(5)), int(rng.integers(20)), float(rng.random())) for _ in range(RANKS)
            ]
            balancer.publish(number * 1.0, counts)
            client.lb_engines = [list(each) for each in counts]
        while taken and rng.random() < 0.45:  # some end
            rank = taken.pop(int(rng.integers(len(taken))))
            balancer.in_flight[rank] -= 1
            client.engine_inflight[client.core_engines[rank]] -= 1
        asked = SimpleNamespace(request_id=f"{number}", data_parallel_rank=None, pooling_params=None)
        theirs = client.core_engines.index(client.get_core_engine_for_request(asked))
        assert balancer.choose() == theirs, number
        taken.append(theirs)
