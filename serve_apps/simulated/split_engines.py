"""A prompt computed by one engine and decoded by another: both sides on the real clock.

The decode side answers. It asks a prefill engine for the prompt, takes blocks, waits for the KV, and only
then lets the prefill engine give its blocks back. One call to the prefill side lasts all that time: its end
gives the blocks back, whoever ends it and why, so that a client that leaves cannot leave blocks behind.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from conf.io.one_line import last_line
from serve_apps.engine_model.cost.links import KvLink
from serve_apps.engine_model.engine.engine import QueueFull
from serve_apps.simulated.openai_answers import ApiRequest, EngineSteps
from serve_apps.simulated.realtime_engine import EngineDead, RealtimeEngine, Stream

HELD_S = 480.0
"""Longest time that a prompt's blocks are held for an engine that never fetches them (vLLM's default of
VLLM_NIXL_ABORT_REQUEST_TIMEOUT): the process of a decode engine may die with its calls open."""


@dataclass(frozen=True, slots=True)
class PromptComputed:
    """The prompt's one token exists since `at_s`; its computation began at `begun_s`.

    Both are on the clock that the engines of an application share.
    """

    begun_s: float
    at_s: float
    steps: EngineSteps


Answers = AsyncGenerator[PromptComputed | Exception, None]
"""One answer to a prompt, or QueueFull, ValueError for one that never fits, or EngineDead: raised behind a
handle of Serve's an error would not keep its class."""
Ask = Callable[[ApiRequest, float], Answers]
"""Has the prompt of a request computed, which came at a time (s)."""


async def compute(engine: RealtimeEngine, prompt: ApiRequest, came_s: float) -> Answers:
    """Compute the prompt of a request that came to the decode side at `came_s`, and hold its KV.

    One answer, then nothing until the caller ends the call; its end gives the blocks back.
    """
    # Where clocks run at another speed a way of some milliseconds would be multiplied: it is left out.
    at_s, stream = None if engine.time_scale == 1 else came_s, None
    try:
        stream = engine.hand(replace(prompt, output_tokens=1), "held", at_s)
        await stream.more_than(0)
        yield PromptComputed(stream.state.begun_s or stream.accepted_s, stream.emitted_s[0], stream.steps)
        await engine.until(stream.emitted_s[0] + HELD_S)
    except EngineDead as error:
        yield EngineDead(f"the prefill engine cannot answer: {error}")
    except (QueueFull, ValueError) as error:
        yield error
    finally:
        if stream:
            engine.close(stream)


class RemotePrompts:
    """Prompts of a decode engine, computed by the engines that `ask` reaches.

    With `write` both engines get a request at once and the KV comes while the prompt is computed; otherwise
    the decode engine gets it, and fetches the KV, when the prompt has been computed.
    """

    def __init__(self, engine: RealtimeEngine, ask: Ask, link: KvLink, write: bool) -> None:
        self._engine, self._ask, self._link, self._write = engine, ask, link, write
        self._tasks: dict[Stream, tuple[asyncio.Task[Any], ...]] = {}

    async def open(self, request: ApiRequest) -> Stream:
        """Have the prompt computed and hand the request to the engine.

        Raises EngineDead, QueueFull, and ValueError for what never fits, of either side.
        """
        engine, computed = self._engine, asyncio.get_running_loop().create_future()
        engine.check(request.input_tokens, request.output_tokens)
        at_s = came_s = engine.now_s()
        call = asyncio.create_task(_read(self._ask(replace(request, reveal=None), came_s), computed))
        try:
            if not self._write:
                prompt = await asyncio.shield(computed)
                at_s = engine.now_s() if engine.time_scale == 1 else prompt.at_s
            stream = engine.hand(request, "remote", at_s)
        except BaseException:  # also a client that has left
            call.cancel()
            raise
        stream.accepted_s = came_s

        def fail_if_lost(ended: asyncio.Task[str]) -> None:
            if not ended.cancelled():
                stream.fail(ended.result())

        call.add_done_callback(fail_if_lost)
        self._tasks[stream] = call, asyncio.create_task(self._fetch(stream, computed, call))
        return stream

    def close(self, stream: Stream) -> None:
        """Forget a stream and what it has on both sides."""
        for task in self._tasks.pop(stream):
            task.cancel()
        self._engine.close(stream)

    async def _fetch(
        self, stream: Stream, computed: asyncio.Future[PromptComputed], call: asyncio.Task[str]
    ) -> None:
        """Wait for blocks and the prompt, let the KV come, then release the prefill engine's blocks."""
        try:
            taken_s, tokens = await stream.blocks_taken()
            prompt = await asyncio.shield(computed)
            stream.prompt = prompt.steps
            # What is read was computed before, by any clock.
            computed_s = prompt.at_s if self._write else taken_s
            end_s = self._link.end_s(prompt.begun_s, computed_s, taken_s, tokens)
            self._engine.kv_arrived(stream, end_s)
            await self._engine.until(end_s)
        except Exception as error:  # noqa: BLE001  whatever it is, the client must not wait for ever
            stream.fail(f"the prompt's KV did not arrive: {last_line(error)}")
        else:
            call.cancel()


async def _read(answers: Answers, computed: asyncio.Future[PromptComputed]) -> str:
    """Read a call to the prefill side until the prompt is lost, and return the reason.

    `computed` gets the prompt, or if there never is one, QueueFull, ValueError, or EngineDead for a lost
    engine.
    """
    loss: Exception = EngineDead("the prefill engine has given the prompt's blocks back too early")
    try:
        async with aclosing(answers):
            async for answer in answers:
                if isinstance(answer, PromptComputed):
                    computed.set_result(answer)
                else:
                    loss = answer
    except Exception as error:  # noqa: BLE001  the boundary to another process, which may end anyhow
        loss = EngineDead(f"the prefill engine is lost: {last_line(error)}")
    if not computed.done():
        computed.set_exception(loss)
        computed.exception()  # the stream may be all that notices
    return str(loss)
