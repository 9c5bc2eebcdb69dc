"""The engine on a clock: an event loop whose time jumps stands in for the real one."""

import asyncio
import json
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from conf import load
from conf.schema import SimulatedEngine
from serve_apps.engine_model.engine import Engine, GenerateRequest
from serve_apps.openai_api import EngineSteps, ServedModel
from serve_apps.simulated import EngineDead, RealtimeEngine, SimulatedApp, Stream

SPECS = load(["hardware=mi325x", "model=qwen3_235b_a22b_fp8", "engine=simulated", "layout=dp1_tp8_ep8"])
SERVED = ServedModel("org/model", max_model_len=32768, vocab=1000)


class Jumping(asyncio.SelectorEventLoop):
    """A loop that never sleeps: instead its time jumps to the next timer."""

    def __init__(self) -> None:
        self.now_s = 100.0
        super().__init__(_Impatient(self))

    def time(self) -> float:
        return self.now_s


class _Impatient(selectors.DefaultSelector):
    def __init__(self, loop: Jumping) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everything waits for something that will never happen"
        self._loop.now_s += max(0.0, timeout)
        return super().select(0)


def run[T](story: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=Jumping) as runner:
        return runner.run(story)
