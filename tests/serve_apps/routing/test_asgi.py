"""serve_apps/routing/asgi.py: nothing is held back, and who leaves is missed."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import ClientPayloadError, web
from aiohttp.test_utils import TestServer
from starlette.types import Message

from serve_apps.routing.asgi import DESCRIPTION_PATH, Forwarding, ReplicaApp
from tests.support.machine.patience import PATIENCE_S

BODY = b'{"prompt": [1, 2]}'


class Server:
    """Answers in two parts; the second waits until `second` is set. `gone` is set when a client leaves."""

    def __init__(self) -> None:
        self.second, self.gone = asyncio.Event(), asyncio.Event()
        self.seen: list[tuple[str, bytes, dict[str, str]]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.path_qs, await request.read(), dict(request.headers)))
        response = web.StreamResponse(status=201, headers={"x-vllm": "1", "Content-Encoding": "odd"})
        await response.prepare(request)
        await response.write(b"one")
        try:
            await self.second.wait()
        except asyncio.CancelledError:
            self.gone.set()
            raise
        if request.path == "/breaks":
            assert request.transport is not None
            request.transport.close()
        await response.write(b"two")
        return response


class Client:
    """Sends one request to the application and keeps what comes back."""

    def __init__(self, app: Forwarding | ReplicaApp, path: str = "/v1/completions") -> None:
        self.sent: asyncio.Queue[Message] = asyncio.Queue()
        headers = [(b"content-type", b"application/json"), (b"host", b"front"), (b"x-session-id", b"7")]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"a=1", "headers": headers}
        self.task = asyncio.create_task(app(scope, self.receive, self.sent.put))

    async def receive(self) -> Message:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def next(self) -> Message:
        return await asyncio.wait_for(self.sent.get(), 10)


def with_server(told: Callable[[Server, Forwarding], Awaitable[None]]) -> Callable[[], None]:
    """A test that has a server and an application before it."""

    async def run() -> None:
        server = Server()
        made = web.Application()
        made.router.add_route("*", "/{rest:.*}", server.answer)
        async with TestServer(made, handler_cancellation=True) as http:
            app = Forwarding(str(http.make_url("")).rstrip("/"))
            try:
                await told(server, app)
            finally:
                await app.close()

    return lambda: asyncio.run(run())


@with_server
async def test_parts_are_passed_on_as_they_come(server: Server, app: Forwarding) -> None:
    client = Client(app)
    start = await client.next()
    assert start["status"] == 201
    names = dict(start["headers"])
    assert names[b"x-vllm"] == b"1" and names[b"content-encoding"] == b"odd"
    assert b"transfer-encoding" not in names
    assert await client.next() == {"type": "http.response.body", "body": b"one", "more_body": True}
    assert client.sent.empty()
    server.second.set()
    assert (await client.next())["body"] == b"two"
    assert await client.next() == {"type": "http.response.body", "body": b"", "more_body": False}
    ((path, body, headers),) = server.seen
    assert (path, body) == ("/v1/completions?a=1", BODY)
    assert headers["x-session-id"] == "7" and headers["Host"] != "front"


@with_server
async def test_a_client_that_leaves_is_missed_by_the_server(server: Server, app: Forwarding) -> None:
    """Serve cancels the request of a client that is gone."""
    client = Client(app)
    await client.next()
    client.task.cancel()
    await asyncio.wait_for(server.gone.wait(), PATIENCE_S)


@with_server
async def test_an_answer_that_breaks_off_is_broken_off(server: Server, app: Forwarding) -> None:
    client = Client(app, "/breaks")
    await client.next()
    server.second.set()
    with pytest.raises(ClientPayloadError):
        await client.task
    while not client.sent.empty():
        assert client.sent.get_nowait()["more_body"]


def test_a_server_that_is_gone_is_a_bad_gateway() -> None:
    async def run() -> None:
        app = Forwarding("http://127.0.0.1:1")
        client = Client(app)
        assert (await client.next())["status"] == 502
        assert b"does not answer" in (await client.next())["body"]
        await app.close()

    asyncio.run(run())


def test_one_path_tells_what_runs() -> None:
    async def page() -> dict[str, Any]:
        return {"pid": 7, "engine": {"tp": 8}}

    async def asked() -> list[Message]:
        client = Client(ReplicaApp(Forwarding(""), "r1", {DESCRIPTION_PATH: page}), DESCRIPTION_PATH)
        return [await client.next(), await client.next()]

    start, body = asyncio.run(asked())
    assert start["status"] == 200
    assert json.loads(body["body"]) == {"replica_id": "r1", "pid": 7, "engine": {"tp": 8}}
