"""The simulated engine called in process, without Ray."""

import asyncio
import json
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from conf.specs.experiment import SimulatedEngine
from serve_apps.engine_model.engine.engine import Engine, GenerateRequest
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.routing.asgi import ReplicaApp
from serve_apps.simulated.openai_answers import ServedModel
from serve_apps.simulated.realtime_engine import RealtimeEngine
from serve_apps.simulated.server import SimulatedApp
from tests.support.virtual.engines import run_step, specs

SPECS = specs()


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


def run(story: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=Jumping) as runner:
        return runner.run(story)


def engine(**changes: Any) -> Engine:
    assert isinstance(SPECS.engine, SimulatedEngine)
    spec = replace(SPECS.engine, **changes)
    return Engine(EngineKind.of(spec, SPECS.model, SPECS.hardware, SPECS.layout))


def planned(arrivals: list[tuple[float, int, int]]) -> dict[int, list[float]]:
    """When the engine itself, without any shell, emits each token of each request."""
    plain, now_s, times = engine(), 0.0, {key: [] for key in range(len(arrivals))}
    coming = list(enumerate(arrivals))
    while True:
        start_s = max(now_s, min(plain.ready_s(), coming[0][1][0] if coming else float("inf")))
        while coming and coming[0][1][0] <= start_s:
            key, (at_s, input_tokens, output_tokens) = coming.pop(0)
            plain.add(GenerateRequest(input_tokens, output_tokens), at_s)
        if start_s == float("inf"):
            return times
        if step := run_step(plain, start_s):
            now_s = step.end_s
            for event in step.events:
                times[event.request_id].append(now_s)


class Service:
    """A running engine with its application, in the loop whose time jumps."""

    def __init__(self, time_scale: float = 1.0, **changes: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.plain = engine(**changes)
        self.engine = RealtimeEngine(self.plain, self.loop.time, time_scale)
        self.app = ReplicaApp(SimulatedApp(self.engine, SERVED), "replica-7")
        self.engine.start()

    def call(self, path: str, **fields: Any) -> "Call":
        body = json.dumps({"model": SERVED.name} | fields).encode()
        return Call(self.app, "POST" if fields else "GET", path, body)


@dataclass
class Call:
    """One request to an ASGI application, and what it sent back when."""

    app: Callable[..., Awaitable[None]]
    method: str
    path: str
    body: bytes
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[tuple[float, bytes]] = field(default_factory=list)
    ended: bool = False

    async def done(self) -> "Call":
        scope = {"type": "http", "method": self.method, "path": self.path, "headers": []}
        await self.app(scope, self._receive, self._send)
        assert self.ended
        return self

    async def _receive(self) -> dict[str, Any]:
        middle = len(self.body) // 2
        part, self.body = (self.body[:middle], self.body[middle:]) if middle else (self.body, b"")
        return {"type": "http.request", "body": part, "more_body": bool(self.body)}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            assert not self.ended
            self.parts.append((asyncio.get_running_loop().time(), message["body"]))
            self.ended = not message.get("more_body", False)

    @property
    def content(self) -> bytes:
        return b"".join(part for _, part in self.parts)

    def events(self) -> list[Any]:
        words = [line.removeprefix("data: ") for line in self.content.decode().split("\n\n") if line]
        return [word if word == "[DONE]" else json.loads(word) for word in words]


ARRIVALS = [(0.0, 5600, 40), (0.013, 256, 16), (0.3, 9000, 30), (0.3, 64, 5), (2.5, 5600, 3)]
