"""An application whose answers name their replica."""

import asyncio
import json
from typing import Any

from serve_apps.routing.asgi import Message
from serve_apps.vllm_engine.stamped_app import DESCRIPTION_PATH, StampedApp


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 201, "headers": [(b"a", b"b")]})
    await send({"type": "http.response.body", "body": b"hello"})


def ask(path: str, kind: str = "http") -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    app = StampedApp(hello, "r1", {"pid": 7, "engine": {"tp": 8}})
    asyncio.run(app({"type": kind, "path": path}, None, send))  # type: ignore[arg-type]
    return sent


def test_the_header_comes_on_top() -> None:
    start, body = ask("/v1/models")
    assert start["status"] == 201 and body["body"] == b"hello"
    assert start["headers"] == [(b"a", b"b"), (b"x-replica-id", b"r1")]


def test_one_path_tells_what_runs() -> None:
    start, body = ask(DESCRIPTION_PATH)
    assert start["status"] == 200
    assert json.loads(body["body"]) == {"replica_id": "r1", "pid": 7, "engine": {"tp": 8}}


def test_what_is_no_request_passes_unchanged() -> None:
    start, _ = ask("/", kind="websocket")
    assert start["headers"] == [(b"a", b"b")]
