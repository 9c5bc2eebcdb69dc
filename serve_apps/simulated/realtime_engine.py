"""The simulated engine on the real clock: steps begin and end at absolute instants of its own clock, however
late this process woke up. A slow machine delivers late, which is counted, but never slows the engine."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping

from serve_apps.engine_model.engine.engine import Engine, GenerateRequest, Kv, RequestState
from serve_apps.simulated.openai_answers import ApiRequest, EngineSteps
from serve_apps.simulated.openai_request import SeenImages

US = 1_000_000
MOST_US = 2**31 - 1
"""Largest count that a client accepts."""


class EngineDead(Exception):
    """The engine's loop has ended; the message says why."""


class Stream:
    """The tokens of one request as the engine hands them out; times are the engine's, in seconds.

    `taken_s` is when blocks were taken for KV that is computed elsewhere; None before.
    `prompt` counts the steps of the engine that computes it.
    """

    def __init__(self, state: RequestState, accepted_s: float) -> None:
        self.state = state
        self.accepted_s = accepted_s
        self.emitted_s: list[float] = []
        self.late_steps = 0
        self.taken_s: float | None = None
        self.prompt: EngineSteps | None = None
        self._changed = asyncio.Event()
        self._failure: str | None = None

    async def more_than(self, sent: int) -> int:
        """Wait for more than `sent` tokens and return how many there are. Raises EngineDead."""
        while len(self.emitted_s) <= sent:
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
        queue_s = None if self.prompt else self.state.queue_s
        if self.prompt:
            steps, late_steps = steps + self.prompt.steps, late_steps + self.prompt.late_steps
            cached_tokens = self.prompt.cached_tokens
        return EngineSteps(steps, late_steps, cached_tokens, first_us, last_us, queue_s)

    def take(self, taken_s: float) -> None:
        self.taken_s = taken_s
        self._changed.set()

    def put(self, emitted_s: float, late: bool) -> None:
        self.emitted_s.append(emitted_s)
        self.late_steps += late
        self._changed.set()

    def fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._changed.set()

    async def _change(self) -> None:
        """Wait for anything new. Raises EngineDead."""
        if self._failure:
            raise EngineDead(self._failure)
        self._changed.clear()
        await self._changed.wait()


TIMER_S = 1e-3
"""The event loop's timers count milliseconds: a shorter sleep would spin until it is over."""
SPIN_S = 1e-4
"""uvloop does not sleep so briefly: a millisecond too many would be a third of a fast clock's step."""

log = logging.getLogger(__name__)


class RealtimeEngine:
    """Runs an engine from `start()` to `stop()`, `time_scale` times as fast as `clock` (seconds).

    Its own time is 0 where the clock says `epoch_s`, or else now.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float] = time.monotonic,
        time_scale: float = 1.0,
        epoch_s: float | None = None,
    ) -> None:
        self.time_scale = time_scale
        self._engine = engine
        self._real_clock = clock
        self._epoch_s = clock() if epoch_s is None else epoch_s
        self._least_sleep_s = TIMER_S if time_scale <= 1 else SPIN_S
        self._streams: dict[RequestState, Stream] = {}
        self._seen = SeenImages()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
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

    async def open(self, request: ApiRequest) -> Stream:
        """Hand a request to the engine, which computes its prompt itself. Raises as `hand`."""
        return self.hand(request)

    def hand(self, request: ApiRequest, kv: Kv = "own", at_s: float | None = None) -> Stream:
        """Hand a request to the engine, as of now or of `at_s`, a moment ago.

        Raises EngineDead, QueueFull, ValueError for what never fits.
        """
        if self.failure:
            raise EngineDead(self.failure)
        came_s, images = self.now_s() if at_s is None else at_s, self._seen.new_tokens(request.images)
        tokens = request.input_tokens, request.output_tokens
        state = self._engine.add(GenerateRequest(*tokens, request.hashes, images, kv), came_s)
        stream = self._streams[state] = Stream(state, came_s)
        self._arrived.set()
        return stream

    def check(self, input_tokens: int, output_tokens: int) -> None:
        """Raise ValueError for a request that this engine can never serve."""
        self._engine.check(input_tokens, output_tokens)

    def kv_arrived(self, stream: Stream, at_s: float) -> None:
        """All KV of a stream's prompt is here at `at_s`, which may lie ahead."""
        self._engine.transfer_ends(stream.state, at_s)
        self._arrived.set()

    def close(self, stream: Stream) -> None:
        """Forget a stream; one that is unfinished is aborted. No transfer needs its blocks any more."""
        if not self._streams.pop(stream.state, None):
            return
        if not stream.state.over:
            self._engine.abort(stream.state)
            self._aborted += 1
        self._engine.transfer_ends(stream.state)
        self._arrived.set()  # another request may have waited for the blocks

    def metrics(self) -> Mapping[str, float]:
        """What `openai_answers.SAMPLES` names; counters are totals since the start, `kv_usage` is 0 to 1."""
        counters = "preemptions", "prompt_tokens", "generation_tokens", "prefix_queries", "prefix_hits"
        return {
            "running": self._engine.running,
            "waiting": self._engine.waiting,
            "kv_usage": self._engine.kv_usage,
            "finished": self._finished,
            "aborted": self._aborted,
            "steps": self._steps,
            "late_steps": self._late_steps,
        } | {name: self._engine.total(name) for name in counters}

    async def _run(self) -> None:
        end_s = self.now_s()
        while True:
            start_s = max(end_s, self._engine.ready_s())
            if start_s > end_s and await self._comes_before(start_s):
                continue
            await self.until(start_s)
            planned_s = self._engine.begin_step(start_s)
            for state in self._engine.loading():  # their streams wait for blocks
                if stream := self._streams.get(state):
                    stream.take(start_s)
            if planned_s is not None:  # None: what was about to arrive has been aborted
                await self.until(planned_s)
                self._deliver(planned_s, planned_s - start_s)
                end_s = planned_s

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

    async def until(self, due_s: float) -> None:
        """Sleep until `due_s` of the engine's own time; lets others run at least once, also when behind."""
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
            if stream := self._streams.get(state):
                stream.put(end_s, late)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail all open streams, whatever ended the loop."""
        error = None if task.cancelled() else task.exception()
        self.failure = f"the engine died: {error!r}" if error else "the engine was stopped"
        if error:
            log.error(self.failure, exc_info=error)
        for stream in self._streams.values():
            stream.fail(self.failure)
