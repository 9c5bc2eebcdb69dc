"""serve_apps/engine_model/service/split_service.py: the parts of a latency by hand, blocks held."""

import math
from dataclasses import replace
from typing import Any

import pytest

from conf.specs.experiment import Constant, Layout, SimulatedEngine
from conf.specs.layout import PrefillEngines, TransferTime
from serve_apps.engine_model.cost.step_time import Batch, roofline
from serve_apps.engine_model.cost.transfer import TransferSeconds
from serve_apps.engine_model.scheduler.engine import IDLE_POLL_S
from serve_apps.engine_model.service.split_service import SplitService
from serve_apps.engine_model.service.virtual_service import RequestProgress
from tests.support.virtual.engines import check_integrity, specs

ASKED = specs()
FRONT_S, LATENCY_S = 0.003, 0.007
STEP_TIME = replace(
    ASKED.model.step_time,
    front_end_ms=Constant(FRONT_S * 1e3, "ms per request", "test"),
    front_end_latency_ms=Constant(0.0, "ms per request", "test"),
)
MODEL = replace(ASKED.model, step_time=STEP_TIME)


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


def service(asked: Layout, **engine: Any) -> SplitService:
    return SplitService.of(SimulatedEngine(**engine), MODEL, ASKED.hardware, asked)


def serve(served: SplitService, requests: list[tuple[float, int, int]]) -> list[RequestProgress]:
    """All to their end, by key."""
    for key, request in enumerate(requests):
        served.submit(key, *request)
    served.advance(1e4)
    done = sorted(served.observe())
    assert [each.key for each in done] == list(range(len(requests))) and all(each.finished for each in done)
    assert served.observe() == []
    for each in served._engines:
        check_integrity(each.engine.scheduler)
        assert each.engine.kv_usage == 0
    return done


def ttft(progress: RequestProgress, at_s: float = 0.0) -> float:
    assert progress.first_token_s is not None
    return progress.first_token_s - at_s


def step_s(batch: Batch, asked: Layout) -> float:
    return roofline(MODEL, ASKED.hardware, asked.decode_side).duration_s(batch)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_first_token_of_one_request_comes_after_the_sum_of_its_parts(asynchronous: bool) -> None:
    asked = layout()
    (alone,) = serve(service(asked, async_scheduling=asynchronous), [(1.0, 5600, 3)])
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
        serve(service(replace(asked, transfer_mode=mode)), [(0.0, 5600, 3)])[0] for mode in ("read", "write")
    )
    seconds = TransferSeconds.of(MODEL, asked)
    saved_s = ttft(read) - ttft(written)
    assert saved_s == pytest.approx(FRONT_S + seconds.work_s(5600) * (1 - seconds.last_share), abs=2e-3)


def test_blocks_held_for_a_transfer_delay_the_next_prompt() -> None:
    asked = layout()
    slow = replace(
        asked, transfer=replace(asked.transfer, latency_ms=Constant(500.0, "ms per prompt", "test"))
    )
    two = [(0.0, 5600, 2), (0.0, 5600, 2)]
    ample, tight = (
        serve(SplitService.of(replace(spec), MODEL, ASKED.hardware, slow), two)
        for spec in (SimulatedEngine(num_gpu_blocks=1000), SimulatedEngine(num_gpu_blocks=360))
    )
    assert ttft(tight[0]) == pytest.approx(ttft(ample[0]))
    assert ttft(tight[1]) - ttft(ample[1]) > 0.5  # the prompt was begun when the first one was away


def test_each_decode_engine_has_a_link_of_its_own() -> None:
    two = [(0.0, 5600, 2), (0.0, 5600, 2)]
    one_way, two_ways = (serve(service(layout(2, decode)), two) for decode in (1, 2))
    work_s = TransferSeconds.of(MODEL, layout()).work_s(5600)
    assert ttft(two_ways[1]) == pytest.approx(ttft(two_ways[0]))
    assert abs(ttft(one_way[1]) - ttft(one_way[0])) > 0.9 * work_s  # one waits for the other
    assert {each.replica for each in two_ways} == {0, 1}


def test_a_shared_prefix_is_found_on_the_prefill_engine_and_need_not_be_read_again() -> None:
    served = service(layout(connector="nixl"))
    served.submit(0, 0.0, 5600, 2, shared_tokens=3200)
    served.submit(1, 5.0, 5600, 2, shared_tokens=3200)
    served.advance(20.0)
    first, second = sorted(served.observe())
    assert (first.cached_tokens, second.cached_tokens) == (0, 3200)
    work_s = TransferSeconds.of(MODEL, layout()).work_s(3200)
    assert ttft(first) - ttft(second, 5.0) > work_s
    assert service(layout(connector="moriio"))._prefill[0].engine.scheduler.kv.caching is False


def test_a_service_is_watched_as_any_other() -> None:
    served = service(layout())
    served.submit(7, 1.0, 5600, 30)
    served.advance(0.5)
    with pytest.raises(ValueError, match="before the virtual now"):
        served.submit(8, 0.2, 10, 10)
    served.advance(1.01)
    assert served.observe() == [RequestProgress(7, 0, None, None, 0, False, 0)]
    served.advance(1.6)
    (seen,) = served.observe()
    assert 0 < seen.tokens < 30 and not seen.finished
    served.submit(9, 5.0, 10**6, 1)
    with pytest.raises(ValueError, match="the engine holds"):
        served.advance(5.0)


def test_engines_that_wait_for_each_other_for_ever_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    served = service(layout(transfer_mode="write"))
    monkeypatch.setattr(served._replicas[0].engine, "kv_arrived", lambda *_: None)
    served.submit(0, 0.0, 5600, 2)
    with pytest.raises(ValueError, match="num_gpu_blocks"):
        served.advance(60.0)


@pytest.mark.parametrize("sides", [([], [1]), ([1], [])])
def test_both_sides_need_an_engine(sides: Any) -> None:
    with pytest.raises(ValueError, match="at least one prefill and one decode"):
        SplitService(*sides, layout(), MODEL)
