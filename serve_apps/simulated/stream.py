"""One request's tokens, as a simulated engine hands them out."""

import asyncio

from serve_apps.engine_model.engine.engine import Kv, RequestState
from serve_apps.simulated.openai_answers import EngineSteps

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

    def __init__(self, state: RequestState, accepted_s: float, kv: Kv = "own") -> None:
        self.state = state
        self.request_id = state.request_id
        self.accepted_s = accepted_s
        self.kv = kv
        self.emitted_s: list[float] = []
        self.late_steps = 0
        self.finished = False
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
        self._failure = self._failure or reason
        self._changed.set()

    async def _change(self) -> None:
        """Wait for anything new. Raises EngineDead."""
        if self._failure:
            raise EngineDead(self._failure)
        self._changed.clear()
        await self._changed.wait()
