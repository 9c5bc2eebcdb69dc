"""The simulated engine on the real clock, and its ASGI application; knows nothing of Ray and of config files.

Steps begin and end at absolute instants of the engine's own clock: the next one starts where the
last one ended (or when work arrives), however late this process woke up. A slow machine therefore
delivers late, which is counted, but never slows the engine. That clock may run `time_scale` times as
fast as the real one, or slower; then its time is sent in-band.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Protocol

from serve_apps.engine_model.scheduler.engine import BlockEngine, GenerateRequest, QueueFull
from serve_apps.engine_model.scheduler.lockstep import AnyEngine
from serve_apps.engine_model.scheduler.request import Kv, RequestState
from serve_apps.routing.asgi import Message, Receive, Scope, Send, lifespan
from serve_apps.simulated import openai_answers, openai_request
from serve_apps.simulated.openai_answers import (
    ApiError,
    ApiRequest,
    EngineMetrics,
    EngineSteps,
    OpenAiAnswer,
    ServedModel,
)
from serve_apps.simulated.openai_images import SeenImages
from serve_apps.simulated.revealed_answers import RevealedAnswer

TIMER_S = 1e-3
"""The event loop's timers count milliseconds: a shorter sleep would spin until it is over."""
SPIN_S = 1e-4
"""uvloop does not sleep so briefly: a millisecond too many would be a third of a fast clock's step."""
US, NS = 1_000_000, 1_000_000_000
MOST_STARTS = 4096
"""Steps of which the begin is remembered: more than any prompt takes (our choice)."""
MOST_US = 2**31 - 1
"""Largest count that a client accepts."""

log = logging.getLogger(__name__)


class EngineDead(Exception):
    """The engine's loop has ended; the message says why."""


class Stream:
    """The tokens of one request as the engine hands them out; times are the engine's, in seconds.

    `begun_s` is when the prompt's computation began, known with its first token and only if its KV is held
    for another engine. `taken_s` is when blocks were taken for KV that is computed elsewhere; None before.
    `prompt` counts the steps of the engine that computes it.
    """

    def __init__(self, state: RequestState, accepted_s: float, kv: Kv = "own") -> None:
        self.state = state
        self.request_id = state.request_id
        self.accepted_s = accepted_s
        self.kv = kv
        self.emitted_s: list[float] = []
        self.late_steps = 0
        self.finished = False
        self.begun_s = accepted_s
        self.taken_s: float | None = None
        self.awaits_kv = False
        self.prompt: EngineSteps | None = None
        self._changed = asyncio.Event()
        self._failure: str | None = None

    async def more_than(self, seen: int) -> int:
        """Wait for more than `seen` tokens and return how many there are. Raises EngineDead."""
        while len(self.emitted_s) <= seen:
            await self._change()
        return len(self.emitted_s)

    async def blocks_taken(self) -> tuple[float, int]:
        """Wait until blocks are taken for KV that comes from elsewhere; the time, and the tokens to load.

        Raises EngineDead.
        """
        while self.taken_s is None:
            await self._change()
        return self.taken_s, self.state.tokens_to_load

    @property
    def steps(self) -> EngineSteps:
        """Every token comes from a step of its own; a prompt computed elsewhere adds the steps there."""
        ends_s = (self.emitted_s[0], self.emitted_s[-1]) if self.emitted_s else (self.accepted_s,) * 2
        first_us, last_us = (min(round((end_s - self.accepted_s) * US), MOST_US) for end_s in ends_s)
        steps, late_steps, cached_tokens = len(self.emitted_s), self.late_steps, self.state.cached_tokens
        queue_s = self.state.queue_s if self.kv == "own" and not self.prompt else None
        if self.prompt:
            steps, late_steps = steps + self.prompt.steps, late_steps + self.prompt.late_steps
            cached_tokens = self.prompt.cached_tokens
        return EngineSteps(steps, late_steps, cached_tokens, first_us, last_us, queue_s)

    def take(self, taken_s: float) -> None:
        self.taken_s = taken_s
        self.awaits_kv = True
        self._changed.set()

    def put(self, emitted_s: float, finished: bool, late: bool) -> None:
        self.emitted_s.append(emitted_s)
        self.finished = finished
        self.late_steps += late
        self._changed.set()

    def fail(self, reason: str) -> None:
        self._failure = reason
        self._changed.set()

    async def _change(self) -> None:
        """Wait for anything new. Raises EngineDead."""
        if self._failure:
            raise EngineDead(self._failure)
        self._changed.clear()
        await self._changed.wait()


class RealtimeEngine:
    """Runs an engine from `start()` to `stop()`, `time_scale` times as fast as `clock` (seconds).

    Its own time is 0 where the clock says `epoch_s`, or else now.
    """

    def __init__(
        self,
        engine: AnyEngine,
        clock: Callable[[], float] = time.monotonic,
        time_scale: float = 1.0,
        epoch_s: float | None = None,
    ) -> None:
        self.time_scale = time_scale
        self._engine = engine
        self._real_clock = clock
        self._epoch_s = clock() if epoch_s is None else epoch_s
        self._least_sleep_s = TIMER_S if time_scale <= 1 else SPIN_S
        self._streams: dict[int, Stream] = {}
        self._without_blocks: set[int] = set()  # streams whose KV comes from elsewhere
        self._holds = False
        self._starts: dict[int, float] = {}  # of the last steps by their number, where KV is held for others
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._next_id = 0
        self._steps = self._late_steps = self._finished = self._aborted = 0
        self.failure: str | None = "the engine has not been started"

    def start(self) -> None:
        """Begin to run, in the running event loop."""
        self.failure = None
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        """End the loop; open streams fail."""
        if self._task:
            self._task.cancel()

    def now_s(self) -> float:
        """The engine's own time, in seconds."""
        return (self._real_clock() - self._epoch_s) * self.time_scale

    def open(
        self,
        input_tokens: int,
        output_tokens: int,
        hashes: tuple[int, ...] = (),
        new_image_tokens: int = 0,
        kv: Kv = "own",
        at_s: float | None = None,
    ) -> Stream:
        """Hand a request to the engine, as of now or of `at_s`, a moment ago.

        Raises EngineDead, QueueFull, ValueError for what never fits.
        """
        if self.failure:
            raise EngineDead(self.failure)
        request = GenerateRequest(self._next_id, input_tokens, output_tokens, hashes, new_image_tokens, kv)
        came_s = self.now_s() if at_s is None else at_s
        state = self._engine.add(request, came_s)
        self._next_id += 1
        stream = self._streams[request.request_id] = Stream(state, came_s, kv)
        self._holds |= kv == "held"
        if kv == "remote":
            self._without_blocks.add(request.request_id)
        self._arrived.set()
        return stream

    def check(self, input_tokens: int, output_tokens: int) -> None:
        """Raise ValueError for a request that this engine can never serve."""
        self._engine.check(GenerateRequest(self._next_id, input_tokens, output_tokens))

    def kv_arrived(self, stream: Stream, at_s: float) -> None:
        """All KV of a stream's prompt is here at `at_s`, which may lie ahead."""
        stream.awaits_kv = False
        self._mover.kv_arrived(stream.request_id, at_s)
        self._arrived.set()

    def close(self, stream: Stream) -> None:
        """Forget a stream; one that is unfinished is aborted, one that holds its KV releases it."""
        if not self._streams.pop(stream.request_id, None):
            return
        self._without_blocks.discard(stream.request_id)
        if not stream.finished:
            self._engine.abort(stream.request_id)
            self._aborted += 1
            if stream.awaits_kv:  # none will come; until it did the blocks would be kept
                self._mover.kv_arrived(stream.request_id, self.now_s())
        elif stream.kv == "held":
            self._mover.release(stream.request_id)
        self._arrived.set()  # another request may have waited for the blocks

    @property
    def _mover(self) -> BlockEngine:
        """The engine as one that holds or awaits KV, which data-parallel ranks do not."""
        assert isinstance(self._engine, BlockEngine)
        return self._engine

    async def until(self, due_s: float) -> None:
        """Sleep until `due_s` of the engine's own time; at once if it is past."""
        # A timer may fire a millisecond early, which does not matter to what waits here.
        await asyncio.sleep(max(due_s - self.now_s(), 0) / self.time_scale)

    def metrics(self) -> EngineMetrics:
        engine, scheduler = self._engine, self._engine.scheduler
        return EngineMetrics(
            running=engine.running,
            waiting=engine.waiting,
            kv_usage=engine.kv_usage,
            preemptions=scheduler.preemptions,
            prompt_tokens=scheduler.prompt_tokens_total,
            generation_tokens=scheduler.generation_tokens_total,
            finished=self._finished,
            aborted=self._aborted,
            steps=self._steps,
            late_steps=self._late_steps,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
        )

    async def _run(self) -> None:
        end_s = self.now_s()
        while True:
            start_s = max(end_s, self._engine.ready_s())
            if start_s > end_s and await self._comes_before(start_s):
                continue
            await self._until(start_s)
            planned_s = self._engine.begin_step(start_s)
            if self._without_blocks:
                self._tell_blocks(start_s)
            if planned_s is not None:  # None: what was about to arrive has been aborted
                if self._holds:
                    self._note_start(start_s)
                await self._until(planned_s)
                self._deliver(planned_s, planned_s - start_s)
                end_s = planned_s

    def _note_start(self, at_s: float) -> None:
        """Remember when the step began, for a prompt that may begin with it."""
        self._starts[self._mover.scheduler.progress.completed + 1] = at_s
        if len(self._starts) > MOST_STARTS:
            del self._starts[next(iter(self._starts))]

    async def _comes_before(self, due_s: float) -> bool:
        """Wait until `due_s`, or until something comes that may be ready earlier; True if it came."""
        self._arrived.clear()
        left_s = (due_s - self.now_s()) / self.time_scale
        if left_s < TIMER_S:
            return False
        try:
            async with asyncio.timeout(None if math.isinf(left_s) else left_s):
                await self._arrived.wait()
        except TimeoutError:
            return False
        return True

    def _tell_blocks(self, at_s: float) -> None:
        """Tell the streams for whose KV the engine has just taken blocks."""
        for state in self._mover.loading():
            self._without_blocks.discard(state.request_id)
            if stream := self._streams.get(state.request_id):
                stream.take(at_s)

    async def _until(self, due_s: float) -> None:
        """Sleep until `due_s`; lets others run at least once, also when behind."""
        while True:
            remaining_s = (due_s - self.now_s()) / self.time_scale
            if 0 < remaining_s < TIMER_S:
                remaining_s = self._least_sleep_s
            await asyncio.sleep(max(remaining_s, 0))
            if self.now_s() >= due_s:  # a timer may fire a millisecond early
                return

    def _deliver(self, end_s: float, duration_s: float) -> None:
        late = self.now_s() - end_s > duration_s / 2
        self._steps += 1
        self._late_steps += late
        emitting = self._engine.emitting()
        self._finished += len(self._engine.end_step())
        for state in emitting:
            if stream := self._streams.get(state.request_id):
                if stream.kv == "held":
                    stream.begun_s = self._starts.get(state.first_step, end_s - duration_s)
                stream.put(end_s, state.finished, late)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail all open streams, whatever ended the loop."""
        error = None if task.cancelled() else task.exception()
        self.failure = f"the engine died: {error!r}" if error else "the engine was stopped"
        if error:
            log.error(self.failure, exc_info=error)
        for stream in self._streams.values():
            stream.fail(self.failure)


class PromptEngines(Protocol):
    """The engines that compute the prompts of an engine's requests."""

    async def open(self, request: ApiRequest) -> Stream:
        """Hand a request to the engine. Raises EngineDead, QueueFull, ValueError for what never fits."""
        ...

    def close(self, stream: Stream) -> None:
        """Forget a stream, wherever it has left something."""
        ...


class OwnPrompts:
    """The engine computes its prompts itself."""

    def __init__(self, engine: RealtimeEngine) -> None:
        self._engine = engine
        self._seen = SeenImages()

    async def open(self, request: ApiRequest) -> Stream:
        asked = request.input_tokens, request.output_tokens, request.hashes
        return self._engine.open(*asked, self._seen.new_tokens(request.images))

    def close(self, stream: Stream) -> None:
        self._engine.close(stream)


Page = Callable[[], Awaitable[bytes]]
"""A further answer to GET, as JSON."""


class SimulatedApp:
    """The ASGI application of one replica; the server in front cancels a call whose client has left.

    `prompts` says where prompts are computed (by default in the engine itself); `pages` are further paths.
    """

    def __init__(
        self,
        engine: RealtimeEngine,
        served: ServedModel,
        replica_id: str,
        prompts: PromptEngines | None = None,
        pages: Mapping[str, Page] | None = None,
    ) -> None:
        self._engine = engine
        self._served = served
        self._replica_id = replica_id.encode()
        self._prompts = prompts or OwnPrompts(engine)
        self._pages = pages or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            match (scope["method"], scope["path"]):
                case ("POST", "/v1/completions"):
                    request = openai_request.parse_completion(await _body(receive), self._served)
                    await self._generate(request, scope, send)
                case ("POST", "/v1/chat/completions"):
                    request = openai_request.parse_chat(await _body(receive), self._served)
                    await self._generate(request, scope, send)
                case ("GET", "/v1/models"):
                    await self._answer(send, openai_answers.models_body(self._served))
                case ("GET", "/metrics"):
                    body = openai_answers.metrics_body(self._engine.metrics(), self._served)
                    await self._answer(send, body, kind=openai_answers.METRICS_TYPE)
                case ("GET", "/health"):
                    alive = self._engine.failure is None
                    status = HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE
                    await self._answer(send, b"", status)
                case ("GET", path) if path in self._pages:
                    await self._answer(send, await self._pages[path]())
                case (method, path):
                    raise openai_answers.not_found(method, path)
        except ApiError as error:
            await self._answer(send, error.body, error.status)

    async def _generate(self, request: ApiRequest, scope: Scope, send: Send) -> None:
        """Raises ApiError as long as nothing was sent; later errors go in band."""
        try:
            stream = await self._prompts.open(request)
        except QueueFull as error:
            raise openai_answers.overloaded(str(error)) from error
        except ValueError as error:
            raise ApiError(str(error)) from error
        except EngineDead as error:
            raise openai_answers.server_error(str(error)) from error
        kind = OpenAiAnswer if request.reveal is None else RevealedAnswer
        answer = kind(request, _request_id(scope, stream), int(time.time()), self._served)
        try:
            await (self._stream if request.stream else self._whole)(stream, answer, send)
        finally:
            self._prompts.close(stream)

    async def _whole(self, stream: Stream, answer: OpenAiAnswer, send: Send) -> None:
        last = answer.request.output_tokens - 1
        try:
            if isinstance(answer, RevealedAnswer):
                while len(stream.emitted_s) <= last:  # with the steps: at its end all would take too long
                    answer.write(await stream.more_than(len(stream.emitted_s)))
            await stream.more_than(last)
        except EngineDead as error:
            raise openai_answers.server_error(str(error)) from error
        await self._answer(send, answer.whole(stream.steps))

    def _tokens(self, stream: Stream, answer: OpenAiAnswer, seen: int, count: int) -> bytes:
        """The events of tokens `seen` to `count` - 1, with the engine's time where that is not the real."""
        if self._engine.time_scale == 1:
            return answer.tokens(seen, count)
        return b"".join(
            openai_answers.stamped(answer.tokens(index, index + 1), round(stream.emitted_s[index] * NS))
            for index in range(seen, count)
        )

    def _clock_headers(self, stream: Stream) -> list[tuple[bytes, bytes]]:
        if self._engine.time_scale == 1:
            return []
        accepted_ns = round(stream.accepted_s * NS)
        return [
            (openai_answers.TIME_SCALE, b"%.17g" % self._engine.time_scale),
            (openai_answers.ACCEPTED_NS, b"%d" % accepted_ns),
        ]

    async def _stream(self, stream: Stream, answer: OpenAiAnswer, send: Send) -> None:
        await send(self._start(HTTPStatus.OK, openai_answers.SSE_TYPE, *self._clock_headers(stream)))
        seen = 0
        try:
            while seen < answer.request.output_tokens:
                tokens = await stream.more_than(seen)
                await send(_part(self._tokens(stream, answer, seen, tokens)))
                seen = tokens
        except EngineDead as error:
            await send(_part(openai_answers.error_events(openai_answers.server_error(str(error)))))
        else:
            await send(_part(answer.end(stream.steps)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _answer(
        self,
        send: Send,
        body: bytes,
        status: HTTPStatus = HTTPStatus.OK,
        kind: bytes = openai_answers.JSON_TYPE,
    ) -> None:
        await send(self._start(status, kind, (b"content-length", str(len(body)).encode())))
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _start(self, status: HTTPStatus, kind: bytes, *more: tuple[bytes, bytes]) -> Message:
        headers = [(b"content-type", kind), (b"x-replica-id", self._replica_id), *more]
        return {"type": "http.response.start", "status": status.value, "headers": headers}


async def _body(receive: Receive) -> bytes:
    """The body of a request, read to its end, because some clients listen only then.

    Raises ApiError for one that is too long, of which nothing is kept.
    """
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise openai_answers.invalid("the client left before its request was complete")
        parts.append(message.get("body", b""))
        size_bytes += len(parts[-1])
        if size_bytes > openai_request.MOST_BODY_BYTES:
            parts.clear()
        if not message.get("more_body", False):
            break
    if size_bytes > openai_request.MOST_BODY_BYTES:
        raise openai_answers.too_large(openai_request.MOST_BODY_BYTES)
    return b"".join(parts)


def _part(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


def _request_id(scope: Scope, stream: Stream) -> str:
    """The caller's x-request-id (Serve gives every request one), as vLLM does."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return str(value.decode("latin-1"))
    return str(stream.request_id)
