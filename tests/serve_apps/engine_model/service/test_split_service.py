"""Split nodes on the virtual clock (service/loop.py): the parts of a latency by hand, blocks held."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conf.constants import replaced
from conf.specs.experiment import Constant, Layout, SimulatedEngine
from conf.specs.layout import PrefillEngines, TransferTime
from serve_apps.engine_model import EngineKind
from serve_apps.engine_model.cost.links import TransferSeconds
from serve_apps.engine_model.cost.step_time import Batch, roofline
from serve_apps.engine_model.engine.steps import IDLE_POLL_S
from serve_apps.engine_model.service.balancer import Balance
from serve_apps.engine_model.service.service import Replicas, Requests, serve
from tests.support.virtual.books import check_integrity
from tests.support.virtual.engines import specs
from tests.support.virtual.virtual_service import RequestProgress, VirtualService

ASKED = specs()
FRONT_S, LATENCY_S = 0.003, 0.007
FRONT_END = {
    "model.step_time.front_end_ms": FRONT_S * 1e3,
    "model.step_time.front_end_latency_ms": 0.0,
}
MODEL = replaced(ASKED, FRONT_END).model


def layout(prefill: int = 1, decode: int = 1, **changes: Any) -> Layout:
    """TP4 on both sides; a prompt of 5600 tokens takes 26.9 ms and 7 ms of latency."""
    time = TransferTime(
        Constant(5e9, "bytes per second", "test"), Constant(LATENCY_S * 1e3, "ms per prompt", "test")
    )
    return replace(
        ASKED.layout,
        tensor_parallel=4,
        replicas_per_node=decode,
        prefill=PrefillEngines(prefill, 4),
        transfer=time,
        **changes,
    )


def service(layout: Layout, **engine: Any) -> VirtualService:
    kind = EngineKind.of(SimulatedEngine(**engine), MODEL, ASKED.hardware, layout)
    return VirtualService(kind, layout.replicas_per_node)


def finished(served: VirtualService, requests: list[tuple[float, int, int]]) -> list[RequestProgress]:
    """All to their end, by key."""
    for key, request in enumerate(requests):
        served.submit(key, *request)
    served.advance(1e4)
    done = sorted(served.observe())
    assert [each.key for each in done] == list(range(len(requests))) and all(each.finished for each in done)
    assert served.observe() == []
    arrays = served.service.arrays
    for engine in range(len(arrays.engines)):
        check_integrity(arrays, engine)
    assert (arrays.engines["free"] == arrays.engines["blocks"]).all()
    return done


def ttft(progress: RequestProgress, at_s: float = 0.0) -> float:
    assert progress.first_token_s is not None
    return progress.first_token_s - at_s


def step_s(batch: Batch, layout: Layout) -> float:
    return roofline(MODEL, ASKED.hardware, layout.decode_side).duration_s(batch)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_first_token_of_one_request_comes_after_the_sum_of_its_parts(asynchronous: bool) -> None:
    asked = layout()
    (alone,) = finished(service(asked, async_scheduling=asynchronous), [(1.0, 5600, 3)])
    prompt, decode = Batch(sequences=1), Batch(decode_tokens=1, context_tokens=5599, sequences=1)
    prompt.add_chunk(5600, 0)
    transfer_s = TransferSeconds.of(MODEL, asked).work_s(5600) + LATENCY_S
    looks = math.ceil(transfer_s / IDLE_POLL_S) + (2 if asynchronous else 1)
    parts = FRONT_S, step_s(prompt, asked), FRONT_S, looks * IDLE_POLL_S, step_s(decode, asked)
    assert ttft(alone, 1.0) == pytest.approx(sum(parts))
    assert alone.last_token_s is not None and alone.tokens == 3 and alone.cached_tokens == 0
    later = (replace(decode, context_tokens=5600 + index) for index in range(2))
    assert alone.last_token_s - 1.0 == pytest.approx(sum(parts) + sum(step_s(each, asked) for each in later))


def test_writing_while_the_prompt_is_computed_saves_the_transfer_and_a_front_end() -> None:
    asked = layout()
    read, written = (
        finished(service(replace(asked, transfer_mode=mode)), [(0.0, 5600, 3)])[0]
        for mode in ("read", "write")
    )
    seconds = TransferSeconds.of(MODEL, replace(asked, transfer_mode="write"))
    saved_s = ttft(read) - ttft(written)
    assert saved_s == pytest.approx(FRONT_S + seconds.work_s(5600) * (1 - seconds.last_share), abs=2e-3)


def test_blocks_held_for_a_transfer_delay_the_next_prompt() -> None:
    asked = layout()
    slow = replace(
        asked, transfer=replace(asked.transfer, latency_ms=Constant(500.0, "ms per prompt", "test"))
    )
    two = [(0.0, 5600, 2), (0.0, 5600, 2)]
    ample, tight = (finished(service(slow, num_gpu_blocks=blocks), two) for blocks in (1000, 360))
    assert ttft(tight[0]) == pytest.approx(ttft(ample[0]))
    assert ttft(tight[1]) - ttft(ample[1]) > 0.5  # the prompt was begun when the first one was away


def test_a_shared_prefix_is_found_on_the_prefill_engine_and_need_not_be_read_again() -> None:
    served = service(layout(connector="nixl"))
    served.submit(0, 0.0, 5600, 2, shared_tokens=3200)
    served.submit(1, 5.0, 5600, 2, shared_tokens=3200)
    served.advance(20.0)
    first, second = sorted(served.observe())
    assert (first.cached_tokens, second.cached_tokens) == (0, 3200)
    work_s = TransferSeconds.of(MODEL, layout()).work_s(3200)
    assert ttft(first) - ttft(second, 5.0) > work_s
    assert not service(layout(connector="moriio")).service.arrays.engines["enable_prefix_caching"].any()


def test_engines_that_wait_for_each_other_for_ever_are_an_error() -> None:
    served = service(layout(transfer_mode="write"))
    served.service.arrays.service["token_s"] = np.inf  # no transfer ends
    served.submit(0, 0.0, 5600, 2)
    with pytest.raises(ValueError, match="num_gpu_blocks"):
        served.advance(60.0)


@pytest.mark.parametrize("mode", ["read", "write", "not split"])
@pytest.mark.parametrize("policy", ["leastconn", "roundrobin", "pow2"])
def test_in_one_call_or_in_many_the_same_engines_serve_alike(policy: str, mode: str) -> None:
    asked = ASKED.layout if mode == "not split" else layout(3, 2, transfer_mode=mode)
    engine = SimulatedEngine(num_gpu_blocks=1500, step_noise_cv=0.05)
    kind = EngineKind.of(engine, MODEL, ASKED.hardware, asked)
    rng = np.random.default_rng(5)
    sent_s = np.cumsum(rng.exponential(0.05, 80))
    lengths = [rng.integers(1, 3000, 80), rng.integers(1, 60, 80), np.zeros(80, np.int64)]
    whole = serve(kind, Requests(sent_s, lengths), Replicas(2, Balance(policy), 3))
    served = VirtualService(kind, 2, policy, 3)
    for key, at_s in enumerate(sent_s.tolist()):
        served.submit(key, at_s, int(lengths[0][key]), int(lengths[1][key]))
    seen: dict[int, RequestProgress] = {}
    for until_s in np.arange(0.1, 60, 0.1).tolist():
        served.advance(until_s)
        seen |= {each.key: each for each in served.observe() if each.finished}
    assert [seen[key].last_token_s for key in range(80)] == whole.last_token_s.tolist()
    assert [seen[key].replica for key in range(80)] == whole.replica.tolist()


def test_work_adds_up_on_both_sides() -> None:
    kind = EngineKind.of(SimulatedEngine(), MODEL, ASKED.hardware, layout())
    inputs, outputs = np.arange(100, 150) * 10, np.arange(1, 51)
    result = serve(kind, Requests(np.arange(50) / 10, [inputs, outputs, np.zeros(50, np.int64)]))
    work = result.work
    assert (work["prefill_prefill_tokens"], work["prefill_decode_tokens"]) == (inputs.sum(), 0)
    # The last token of each prompt is computed once more, where its answer is decoded.
    assert (work["prefill_tokens"], work["decode_tokens"]) == (0, outputs.sum())
    assert work["sequences"] == outputs.sum() and work["kv_token_seconds"] > 0
