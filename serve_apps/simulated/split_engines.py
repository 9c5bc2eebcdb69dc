"""A prompt computed by one engine and decoded by another: both sides on the real clock.

The decode side answers. It asks a prefill engine for the prompt, takes blocks, waits for the KV, and only
then lets the prefill engine give its blocks back. One call to the prefill side lasts all that time: its end
gives the blocks back, whoever ends it and why, so that a client that leaves cannot leave blocks behind.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

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
    at_s = None if engine.time_scale == 1 else came_s
    try:
        stream = engine.hand(replace(prompt, output_tokens=1), "held", at_s)
    except (QueueFull, EngineDead, ValueError) as error:
        yield _told(error)
        return
    try:
        await stream.more_than(0)
        yield PromptComputed(stream.state.begun_s or stream.accepted_s, stream.emitted_s[0], stream.steps)
        await engine.until(stream.emitted_s[0] + HELD_S)
    except EngineDead as error:
        yield _told(error)
    finally:
        engine.close(stream)


def _told(error: Exception) -> Exception:
    cannot = isinstance(error, EngineDead)
    return type(error)(f"the prefill engine cannot answer: {error}" if cannot else str(error))


class PrefillCall:
    """One call to the prefill side, from its beginning on: the prompt is `computed`, and may be lost later.

    The error of a prompt that is never computed is QueueFull, ValueError, or EngineDead for a lost engine.
    """

    def __init__(self, answers: Answers) -> None:
        self.computed: asyncio.Future[PromptComputed] = asyncio.get_running_loop().create_future()
        self._stream: Stream | None = None
        self._loss = ""
        self._task = asyncio.create_task(self._read(answers))

    def fail_when_lost(self, stream: Stream) -> None:
        """Let the stream that decodes the prompt fail if the prompt is lost, now or later."""
        self._stream = stream
        if self._loss:
            stream.fail(self._loss)

    def end(self) -> None:
        """The prompt is not needed there any more: its blocks are given back, its loss is none."""
        self._stream = None
        self._task.cancel()
        self.computed.cancel()

    async def _read(self, answers: Answers) -> None:
        try:
            async with aclosing(answers):
                async for answer in answers:
                    if isinstance(answer, PromptComputed):
                        self.computed.set_result(answer)
                    else:
                        self._lose(answer)
            self._lose(EngineDead("the prefill engine has given the prompt's blocks back too early"))
        except Exception as error:  # noqa: BLE001  the boundary to another process, which may end anyhow
            self._lose(EngineDead(f"the prefill engine is lost: {last_line(error)}"))

    def _lose(self, error: Exception) -> None:
        if not self.computed.done():
            self.computed.set_exception(error)
            self.computed.exception()  # the stream may be all that notices
        self._loss = self._loss or str(error)
        if self._stream:
            self._stream.fail(self._loss)


class RemotePrompts:
    """Prompts of a decode engine, computed by the engines that `ask` reaches.

    With `write` both engines get a request at once and the KV comes while the prompt is computed; otherwise
    the decode engine gets it, and fetches the KV, when the prompt has been computed.
    """

    def __init__(self, engine: RealtimeEngine, ask: Ask, link: KvLink, write: bool) -> None:
        self._engine, self._ask, self._link, self._write = engine, ask, link, write
        self._fetches: dict[Stream, tuple[PrefillCall, asyncio.Task[None]]] = {}

    async def open(self, request: ApiRequest) -> Stream:
        """Have the prompt computed and hand the request to the engine.

        Raises EngineDead, QueueFull, and ValueError for what never fits, of either side.
        """
        engine = self._engine
        engine.check(request.input_tokens, request.output_tokens)
        at_s = came_s = engine.now_s()
        call = PrefillCall(self._ask(replace(request, reveal=None), came_s))
        try:
            if not self._write:
                computed = await asyncio.shield(call.computed)
                at_s = engine.now_s() if engine.time_scale == 1 else computed.at_s
            stream = engine.hand(request, "remote", at_s)
        except BaseException:  # also a client that has left
            call.end()
            raise
        stream.accepted_s = came_s
        call.fail_when_lost(stream)
        self._fetches[stream] = call, asyncio.create_task(self._fetch(stream, call))
        return stream

    def close(self, stream: Stream) -> None:
        """Forget a stream and what it has on both sides."""
        call, task = self._fetches.pop(stream)
        task.cancel()
        call.end()
        self._engine.close(stream)

    async def _fetch(self, stream: Stream, call: PrefillCall) -> None:
        """Wait for blocks and the prompt, let the KV come, then release the prefill engine's blocks."""
        try:
            taken_s, tokens = await stream.blocks_taken()
            computed = await asyncio.shield(call.computed)
            stream.prompt = computed.steps
            # What is read was computed before, by any clock.
            computed_s = computed.at_s if self._write else taken_s
            end_s = self._link.end_s(computed.begun_s, computed_s, taken_s, tokens)
            self._engine.kv_arrived(stream, end_s)
            await self._engine.until(end_s)
        except Exception as error:  # noqa: BLE001  whatever it is, the client must not wait for ever
            stream.fail(f"the prompt's KV did not arrive: {last_line(error)}")
        else:
            call.end()
