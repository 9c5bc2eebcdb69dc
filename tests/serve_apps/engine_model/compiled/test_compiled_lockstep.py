"""serve_apps/engine_model/compiled/lockstep.py against `LockstepEngine`, on the same requests."""

from dataclasses import replace

import numpy as np
import pytest

from conf.specs.experiment import Layout, SimulatedEngine
from serve_apps.engine_model.compiled.fast_engine import FastSpec, UnsupportedByFastPath
from serve_apps.engine_model.compiled.lockstep import RanksSpec
from serve_apps.engine_model.scheduler.lockstep import LockstepEngine
from serve_apps.engine_model.service.route_ranks import serve_ranks
from serve_apps.engine_model.service.routed import Replicas, Requests
from serve_apps.engine_model.service.virtual_service import VirtualService
from serve_apps.engine_model.service.whole_service import serve
from tests.support.virtual.engines import specs

DP8 = specs(layout="dp8_attention_ep8")
PARTS = DP8.model, DP8.hardware, DP8.layout


def requests(rate: float, count: int, seed: int = 0, shared: int = 0, input_tokens: int = 3000) -> Requests:
    rng = np.random.default_rng(seed)
    sent_s = np.cumsum(rng.exponential(1 / rate, count))
    prompt = rng.integers(input_tokens // 2, input_tokens, count)
    return Requests(sent_s, [prompt, rng.integers(1, 200, count), np.full(count, shared)])


def block_by_block(
    spec: SimulatedEngine, asked: Requests, engines: int, layout: Layout = DP8.layout
) -> list[object]:
    parts = DP8.model, DP8.hardware, layout
    service = VirtualService([LockstepEngine(spec, *parts) for _ in range(engines)])
    prompt, output, shared = (column.tolist() for column in asked.asked)
    for key, at_s in enumerate(asked.sent_s.tolist()):
        service.submit(key, at_s, prompt[key], output[key], shared_tokens=shared[key])
    service.advance(1e4)
    return [(it.first_token_s, it.last_token_s) for it in service.observe()]


@pytest.mark.parametrize(
    ("rate", "engines", "changes", "shared"),
    [
        (2.0, 1, {}, 0),
        (9.0, 2, {}, 0),
        (6.0, 1, {"async_scheduling": False}, 0),
        (6.0, 1, {"max_num_seqs": 6}, 0),
        (6.0, 1, {"max_num_batched_tokens": 1000, "max_num_seqs": 900}, 0),
        (6.0, 1, {"enable_prefix_caching": True}, 1024),
    ],
)
def test_it_gives_the_times_of_the_block_by_block_ranks(
    rate: float, engines: int, changes: dict[str, object], shared: int
) -> None:
    spec = SimulatedEngine(**changes)  # type: ignore[arg-type]
    asked = requests(rate, 200, shared=shared)
    fast = serve_ranks(RanksSpec.of(spec, *PARTS), asked, Replicas(engines))
    slow = np.array(block_by_block(spec, asked, engines))
    np.testing.assert_allclose(np.column_stack([fast.first_token_s, fast.last_token_s]), slow, rtol=1e-9)


def test_wider_ranks_too() -> None:
    layout = replace(DP8.layout, tensor_parallel=2, data_parallel=4)
    spec, asked = SimulatedEngine(), requests(5.0, 200)
    fast = serve_ranks(RanksSpec.of(spec, DP8.model, DP8.hardware, layout), asked, Replicas())
    slow = np.array(block_by_block(spec, asked, 1, layout))
    np.testing.assert_allclose(np.column_stack([fast.first_token_s, fast.last_token_s]), slow, rtol=1e-9)


def test_its_work_is_that_of_the_replica_and_of_all_its_tokens() -> None:
    asked = requests(4.0, 200)
    times = serve_ranks(RanksSpec.of(SimulatedEngine(), *PARTS), asked, Replicas())
    prompt, output, _ = asked.asked
    assert times.work.prefill_tokens == prompt.sum() and times.work.sequences == output.sum()
    assert times.work.busy_s <= times.last_token_s.max() and set(times.replica) == {0}


def test_a_tight_cache_and_noise_are_left_to_the_block_by_block_ranks() -> None:
    asked = requests(8.0, 60)
    tight = SimulatedEngine(num_gpu_blocks=250)
    with pytest.raises(UnsupportedByFastPath):
        serve_ranks(RanksSpec.of(tight, *PARTS), asked, Replicas())
    slow = np.array(block_by_block(tight, asked, 1))
    times = serve(tight, *PARTS, asked)
    np.testing.assert_allclose(np.column_stack([times.first_token_s, times.last_token_s]), slow)
    with pytest.raises(UnsupportedByFastPath, match="step together"):
        FastSpec.of(SimulatedEngine(), *PARTS)
