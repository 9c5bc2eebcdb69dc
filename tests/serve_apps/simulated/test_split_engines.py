"""serve_apps/simulated/split_engines.py: both sides of a split node in a loop whose time jumps."""

import asyncio
import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from conf.specs.experiment import PrefillEngines, SimulatedEngine
from serve_apps.engine_model.cost.links import KvLink
from serve_apps.engine_model.engine.engine import Engine
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.simulated import split_engines
from serve_apps.simulated.app import SimulatedPrefill
from serve_apps.simulated.openai_answers import ApiRequest, EngineSteps
from serve_apps.simulated.realtime_engine import EngineDead, RealtimeEngine, Stream
from serve_apps.simulated.server import SimulatedApp
from serve_apps.simulated.split_engines import Answers, Ask, PromptComputed, RemotePrompts, compute
from tests.support.virtual.engines import check_integrity
from tests.support.virtual.simulated_service import SERVED, SPECS, Call

ROUND = 1e-3
"""Timers count milliseconds."""


def split(mode: str, connector: str = "moriio") -> Any:
    side = PrefillEngines(tensor_parallel=4)
    return replace(
        SPECS.layout, tensor_parallel=4, prefill=side, transfer_mode=mode, connector=connector, name="split"
    )


class Node:
    """One engine of each side, and the application of the decode side."""

    def __init__(
        self,
        mode: str = "read",
        time_scale: float = 1.0,
        connector: str = "moriio",
        ask: Ask | None = None,
        **spec: Any,
    ) -> None:
        loop = asyncio.get_running_loop()
        layout = split(mode, connector)
        assert isinstance(SPECS.engine, SimulatedEngine)
        kind = EngineKind.of(replace(SPECS.engine, **spec), SPECS.model, SPECS.hardware, layout)
        assert kind.prefill is not None
        self.plain = [Engine(kind.prefill.engine), Engine(kind)]
        epoch_s = loop.time()
        self.prefill, self.decode = (
            RealtimeEngine(each, loop.time, time_scale, epoch_s) for each in self.plain
        )
        self.prefill.start()
        self.decode.start()
        self.seconds = kind.prefill.seconds
        ask = ask or partial(compute, self.prefill)
        prompts = RemotePrompts(self.decode, ask, KvLink(self.seconds), mode == "write")
        self.app = SimulatedApp(self.decode, SERVED, prompts)
        self.prompts = prompts

    def call(self, **fields: Any) -> Call:
        body = json.dumps({"model": SERVED.name} | fields).encode()
        return Call(self.app, "POST", "/v1/completions", body)

    async def stream(self, tokens: int, prompt: int = 0, length: int = 1000) -> list[Any]:
        asked = {"prompt": [prompt] * length, "max_tokens": tokens, "stream": True}
        done = await self.call(**asked, stream_options={"include_usage": True}).done()
        return done.events()

    async def tokens(self, request: ApiRequest) -> Stream:
        """The stream of a request after its last token."""
        stream = await self.prompts.open(request)
        await stream.more_than(request.output_tokens - 1)
        self.prompts.close(stream)
        return stream

    def assert_empty(self) -> None:
        for engine in self.plain:
            assert engine.kv_usage == 0 and not engine.running + engine.waiting
            check_integrity(engine.arrays)


async def settled(node: Node) -> None:
    """Let both sides hear of it, and look once more."""
    for _ in range(20):
        await asyncio.sleep(ROUND)


@pytest.mark.parametrize("mode", ["read", "write"])
async def test_a_stream_has_its_tokens_and_both_sides_are_empty_afterwards(mode: str) -> None:
    node = Node(mode)
    answers = await asyncio.gather(*(node.stream(5 + i, i, 700 + 300 * i) for i in range(4)))
    await settled(node)
    for i, events in enumerate(answers):
        assert events[-1] == "[DONE]"
        assert events[-2]["usage"]["completion_tokens"] == 5 + i
        assert sum("token" in event["choices"][0]["text"] for event in events[:-2]) == 5 + i
        assert events[-2]["maxqps"]["steps"] == 5 + i + 1, "the step that computed the prompt is one of them"
    node.assert_empty()
    told = node.prefill.metrics(), node.decode.metrics()
    assert [each["finished"] for each in told] == [4, 4]
    assert told[0]["prompt_tokens"] == 700 + 1000 + 1300 + 1600
    assert told[0]["generation_tokens"] == 4


async def test_the_first_token_comes_after_prompt_transfer_and_a_step_of_decode() -> None:
    node, request = Node("read"), ApiRequest(False, 4000, 3, True)
    read, write = await node.tokens(request), await Node("write").tokens(request)
    assert read.taken_s is not None and read.prompt is not None
    read_s, write_s = (each.emitted_s[0] - each.accepted_s for each in (read, write))
    prompt_s = read.prompt.first_token_us * 1e-6
    moved_s = node.seconds.work_s(4000) + node.seconds.latency_s
    assert read_s > prompt_s + moved_s
    assert read_s < prompt_s + moved_s + 0.1
    assert prompt_s < write_s < read_s, "the KV flows while the prompt is computed"


async def test_cached_tokens_are_those_of_the_prefill_engine() -> None:
    node = Node(connector="nixl", enable_prefix_caching=True)
    request = ApiRequest(False, 10 * 16 + 8, 2, True, hashes=tuple(range(10)))
    assert [(await node.tokens(request)).steps.cached_tokens for _ in range(2)] == [0, 160]


@pytest.mark.parametrize("mode", ["read", "write"])
@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.05, 0.2, 0.5])
async def test_a_client_that_leaves_leaves_nothing_behind(mode: str, after_s: float) -> None:
    node = Node(mode)
    leaving = [
        asyncio.create_task(node.call(prompt=[i] * 3000, max_tokens=200, stream=True).done())
        for i in range(3)
    ]
    await asyncio.sleep(after_s)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    await asyncio.sleep(1)
    events = await node.stream(2)
    await settled(node)
    assert events[-1] == "[DONE]"
    node.assert_empty()


async def test_a_prefill_engine_refuses_for_the_whole_service() -> None:
    node = Node(max_num_queued_reqs=1)
    asked = {"prompt": [1] * 2000, "max_tokens": 4}
    calls = await asyncio.gather(*(node.call(**asked).done() for _ in range(3)))
    await settled(node)
    node.assert_empty()
    assert sorted(call.status for call in calls) == [200, 503, 503]


@pytest.mark.parametrize("mode", ["read", "write"])
async def test_a_prefill_engine_that_dies_fails_its_requests_only(mode: str) -> None:
    node = Node(mode)
    call = node.call(prompt=[1] * 4000, max_tokens=4)
    task = asyncio.create_task(call.done())
    await asyncio.sleep(0.05)
    node.prefill.stop()
    await task
    await settled(node)
    assert node.decode.failure is None
    assert node.plain[1].kv_usage == 0
    assert call.status == 500
    assert b"prefill engine" in call.content


async def test_a_prefill_engine_lost_after_the_prompt_fails_what_still_waits_for_its_kv() -> None:
    async def one_then_lost() -> Answers:
        yield PromptComputed(0.0, 0.0, EngineSteps(1, 0))
        await asyncio.sleep(0.001)
        raise ConnectionError("actor died")

    node = Node(ask=lambda *_: one_then_lost())
    stream = await node.prompts.open(ApiRequest(False, 5000, 3, True))
    with pytest.raises(EngineDead) as lost:
        await stream.more_than(0)
    assert str(lost.value) == "the prefill engine is lost: actor died"
    node.prompts.close(stream)
    await settled(node)
    assert node.plain[1].kv_usage == 0


async def test_an_error_while_kv_comes_fails_the_client_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such transfer")

    node = Node()
    monkeypatch.setattr(node.decode, "kv_arrived", broken)
    call = await node.call(prompt=[1] * 1000, max_tokens=4).done()
    assert call.status == 500 and b"KV did not arrive: no such transfer" in call.content


async def test_blocks_that_nobody_fetches_are_given_back_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_engines, "HELD_S", 3.0)
    node = Node()
    answers: Answers = compute(node.prefill, ApiRequest(False, 1000, 9, True), 0.0)
    assert isinstance(await anext(answers), PromptComputed)
    assert node.plain[0].kv_usage > 0
    with pytest.raises(StopAsyncIteration):
        await anext(answers)
    await settled(node)
    assert node.plain[0].kv_usage == 0


@pytest.mark.parametrize("mode", ["read", "write"])
async def test_at_another_speed_of_the_clock_the_engines_time_is_the_same(mode: str) -> None:
    request = ApiRequest(False, 3000, 4, True)
    half, whole = [await Node(mode, time_scale).tokens(request) for time_scale in (0.5, 1.0)]
    half_s, whole_s = (each.emitted_s[-1] - each.accepted_s for each in (half, whole))
    assert half_s == pytest.approx(whole_s, abs=3 * ROUND)


@pytest.mark.parametrize("error", [OSError("port gone"), None])
async def test_a_server_of_metrics_that_has_ended_is_a_fault(error: Exception | None) -> None:
    serving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    replica: Any = SimulatedPrefill.__new__(SimulatedPrefill)
    replica._engine, replica._serving = SimpleNamespace(failure=""), serving
    replica._url = "http://127.0.0.1:1"
    await replica.check_health()
    if error:
        serving.set_exception(error)
    else:
        serving.set_result(None)
    with pytest.raises(RuntimeError, match=f"metrics at http://127.0.0.1:1 has ended: {error or 'no error'}"):
        await replica.check_health()
