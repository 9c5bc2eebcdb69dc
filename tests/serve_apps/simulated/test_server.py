"""serve_apps/simulated/server.py and realtime_engine.py, on an event loop whose time jumps."""

import asyncio
import json
from dataclasses import replace

import pytest

from conf.specs.request_sizes import MOST_IMAGES, MOST_PX, Images
from loadgen.prompts.bodies import ImageParts
from serve_apps.engine_model.engine.engine import Engine
from serve_apps.simulated import openai_request
from serve_apps.simulated.openai_answers import ApiRequest, EngineSteps
from serve_apps.simulated.realtime_engine import EngineDead, Stream
from tests.support.virtual.engines import check_integrity
from tests.support.virtual.simulated_service import (
    ARRIVALS,
    Call,
    Service,
    planned,
    run,
)


async def token_times(stream: Stream, tokens: int) -> list[float]:
    times: list[float] = []
    while len(times) < tokens:
        count = await stream.more_than(len(times))
        times += [asyncio.get_running_loop().time()] * (count - len(times))
    return times


async def test_tokens_come_when_the_engine_alone_would_emit_them() -> None:
    served = Service()
    begin_s, waiting = served.loop.time(), []
    for at_s, input_tokens, output_tokens in ARRIVALS:
        await asyncio.sleep(begin_s + at_s - served.loop.time())
        stream = served.engine.hand(ApiRequest(False, input_tokens, output_tokens, True))
        waiting.append(asyncio.create_task(token_times(stream, output_tokens)))
    seen, wanted = await asyncio.gather(*waiting), planned(ARRIVALS)
    assert [len(times) for times in seen] == [output_tokens for _, _, output_tokens in ARRIVALS]
    for key, times in enumerate(seen):  # a timer never fires early; the shell waits at least a millisecond
        gaps = [time_s - begin_s - due_s for time_s, due_s in zip(times, wanted[key], strict=True)]
        assert min(gaps) > -1e-9
        assert max(gaps) <= 1.001e-3


def test_a_process_that_sleeps_too_long_delivers_late_but_never_slows_the_engine() -> None:
    async def story(stall_s: float) -> tuple[list[float], EngineSteps, int]:
        served = Service()
        begin_s = served.loop.time()
        stream = served.engine.hand(ApiRequest(False, 5600, 60, True))
        waiting = asyncio.create_task(token_times(stream, 60))
        await asyncio.sleep(0.3)
        served.loop.now_s += stall_s  # type: ignore[attr-defined]
        times = [time_s - begin_s for time_s in await waiting]
        return times, stream.steps, served.engine.metrics()["late_steps"]

    prompt, steps, late = run(story(0.0))
    stalled, stalled_steps, stalled_late = run(story(0.2))
    assert (steps.steps, steps.late_steps, late) == (60, 0, 0)
    assert steps.last_token_us == pytest.approx(prompt[-1] * 1e6, abs=2e3)
    assert stalled[-1] == pytest.approx(prompt[-1], abs=2e-3)
    held = sum(abs(a - b) > 2e-3 for a, b in zip(prompt, stalled, strict=True))
    assert stalled_steps == replace(steps, late_steps=stalled_late), "the engine's own times stay"
    assert held - 1 <= stalled_late <= held
    assert 12 <= held <= 20, "a stall of 0.2 s holds up some sixteen steps of 12 ms"


async def test_a_streamed_completion() -> None:
    asked = {"prompt": [1] * 300, "max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}}
    call = await Service().call("/v1/completions", **asked).done()
    *tokens, usage, done = call.events()
    assert call.status == 200
    assert call.headers["x-replica-id"] == "replica-7"
    assert call.headers["content-type"].startswith("text/event-stream")
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 19 + ["length"]
    assert usage["usage"]["prompt_tokens"] == 300
    assert usage["usage"]["completion_tokens"] == 20
    told = usage["maxqps"]
    assert (told["steps"], told["late_steps"]) == (20, 0)
    first_s, last_s = (told[f"{which}_token_us"] / 1e6 for which in ("first", "last"))
    assert last_s - first_s == pytest.approx(call.parts[-1][0] - call.parts[0][0], abs=2e-3)
    assert done == "[DONE]"
    assert len({at_s for at_s, _ in call.parts}) == 20, "each token leaves at the end of its own step"


async def test_a_whole_chat_comes_with_its_last_token() -> None:
    served = Service()
    begin_s = served.loop.time()
    messages = [{"role": "user", "content": "one two three"}]
    call = await served.call("/v1/chat/completions", messages=messages, max_tokens=8).done()
    body = json.loads(call.content)
    assert (call.status, body["usage"]["total_tokens"]) == (200, 12)
    assert body["choices"][0]["message"] == {"role": "assistant", "content": " token" * 8}
    assert call.parts[0][0] - begin_s == pytest.approx(planned([(0.0, 4, 8)])[0][-1], abs=1.1e-3)


async def test_a_client_that_leaves_frees_its_place() -> None:
    served = Service()
    asked = {"prompt": [1] * 64, "max_tokens": 500, "stream": True}
    tasks = [asyncio.create_task(served.call("/v1/completions", **asked).done()) for _ in range(3)]
    await asyncio.sleep(0.5)
    assert served.engine.metrics()["running"] == 3
    tasks[1].cancel()
    await asyncio.wait([tasks[1]])
    assert served.engine.metrics()["running"] == 2
    await asyncio.wait(tasks)
    check_integrity(served.plain.arrays)
    metrics = served.engine.metrics()
    assert [metrics[name] for name in ("running", "waiting", "kv_usage")] == [0, 0, 0]
    assert (metrics["finished"], metrics["aborted"]) == (2, 1)


async def test_a_client_that_leaves_before_its_prompt_is_scheduled_is_forgotten() -> None:
    served, request = Service(), ApiRequest(False, 64, 5, True)
    stream = served.engine.hand(request)
    served.engine.close(stream)
    await asyncio.sleep(1.0)
    assert len(await token_times(served.engine.hand(request), 5)) == 5
    assert not stream.emitted_s


class Broken(Engine):
    """An engine that dies in its tenth step."""

    def begin_step(self, now_s: float) -> float | None:
        if self.total("generation_tokens") >= 9:
            raise RuntimeError("the tenth step")
        return super().begin_step(now_s)


async def test_when_the_engine_dies_everybody_is_told() -> None:
    served = Service()
    served.plain.__class__ = Broken
    streamed = served.call("/v1/completions", prompt=[1], max_tokens=99, stream=True)
    whole = served.call("/v1/completions", prompt=[1], max_tokens=99)
    await asyncio.gather(streamed.done(), whole.done())
    late = await served.call("/v1/completions", prompt=[1], stream=True).done()
    with pytest.raises(EngineDead):
        served.engine.hand(ApiRequest(False, 1, 1, True))
    health = await served.call("/health").done()
    assert streamed.status == 200
    assert streamed.events()[-2]["error"]["message"] == "the engine died: RuntimeError('the tenth step')"
    assert streamed.events()[-1] == "[DONE]"
    assert (whole.status, late.status, health.status) == (500, 500, 503)
    assert json.loads(late.content)["error"]["type"] == "InternalServerError"


async def test_the_other_paths() -> None:
    served = Service()
    calls = [await served.call(path).done() for path in ("/health", "/v1/models", "/metrics", "/v2")]
    _, models, metrics, other = calls
    assert [call.status for call in calls] == [200, 200, 200, 404]
    assert {call.headers["x-replica-id"] for call in calls} == {"replica-7"}
    assert json.loads(models.content)["data"][0]["id"] == "org/model"
    assert b"vllm:num_requests_running{" in metrics.content
    assert json.loads(other.content)["error"]["message"] == "GET /v2 is not served"


async def test_a_body_longer_than_any_request_is_refused_and_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openai_request, "MOST_BODY_BYTES", 100)
    served = Service()
    bodies = [json.dumps({"prompt": [1], "max_tokens": 1}).ljust(size).encode() for size in (100, 101)]
    bodies.append(b"no JSON" * 100)
    fits, over, junk = [await Call(served.app, "POST", "/v1/completions", body).done() for body in bodies]
    assert (fits.status, over.status, junk.status) == (200, 413, 413)
    assert not over.body, "it was read to its end, so that its client listens"
    error = json.loads(over.content)["error"]
    assert (error["type"], error["code"]) == ("Request Entity Too Large", 413)
    assert "longer than 100 bytes" in error["message"]


def test_the_longest_requests_that_can_be_asked_are_no_longer_than_that() -> None:
    most_tokens = 262_144  # of all models here
    ids = len(json.dumps([151_935] * most_tokens))
    quarter = MOST_PX // 4, MOST_PX // 4
    largest = 4**2 * len(ImageParts(Images(MOST_IMAGES, MOST_IMAGES, *quarter), 1).part(1, 0))
    photographs = 4 * 50_000_000 // 3  # what OpenAI takes, as base64
    assert max(MOST_IMAGES * largest, photographs) + ids < openai_request.MOST_BODY_BYTES


async def test_a_prompt_that_the_cache_can_never_hold_is_refused() -> None:
    call = await Service(num_gpu_blocks=4).call("/v1/completions", prompt=[1] * 64, stream=True).done()
    assert call.status == 400
    assert "the engine holds 64" in json.loads(call.content)["error"]["message"]


async def test_a_full_queue_is_answered_as_vllm_answers_it() -> None:
    served = Service(max_num_queued_reqs=1)
    open_stream = served.engine.hand(ApiRequest(False, 64, 5, True))
    refused = await served.call("/v1/completions", prompt=[1], max_tokens=1).done()
    served.engine.close(open_stream)
    taken = await served.call("/v1/completions", prompt=[1], max_tokens=1).done()
    error = json.loads(refused.content)["error"]
    assert (refused.status, error["type"], error["code"]) == (503, "Service Unavailable", 503)
    assert taken.status == 200
