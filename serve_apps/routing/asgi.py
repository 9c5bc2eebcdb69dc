"""Types of ASGI applications, and their lifespan protocol."""

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any

import aiohttp

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def nothing() -> None:
    """The shutdown of an application that holds nothing."""


async def lifespan(receive: Receive, send: Send, shutdown: Callable[[], Awaitable[None]] = nothing) -> None:
    """Confirm the start and, after `shutdown`, the end of an application."""
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
    await shutdown()
    await send({"type": f"{message['type']}.complete"})


DESCRIPTION_PATH = "/maxqps/replica"
REPLICA_ID = b"x-replica-id"
HOP_HEADERS = {b"host", b"connection", b"transfer-encoding", b"content-length"}
"""Headers of one connection (RFC 9110, section 7.6.1), which the next hop sets for itself."""
KEEP_ALIVE_S = 2.0
"""vLLM's server closes idle connections after 5 s, perhaps just as a request is sent on one."""


class Forwarding:
    """An application that sends every request to the server at `url`; 502 if the server does not answer.

    `shutdown` is awaited when the application ends.
    """

    def __init__(self, url: str, shutdown: Callable[[], Awaitable[None]] = nothing) -> None:
        self._url = url
        self._shutdown = shutdown
        self._client: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send, self.close)
        elif scope["type"] == "http":
            await self._hand_through(scope, await _body(receive), send)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
        await self._shutdown()

    async def _hand_through(self, scope: Scope, body: bytes, send: Send) -> None:
        query = scope.get("query_string", b"").decode()
        url = f"{self._url}{scope['path']}{'?' if query else ''}{query}"
        headers = [(k.decode(), v.decode("latin-1")) for k, v in scope["headers"] if k not in HOP_HEADERS]
        try:
            answer = await self._connected().request(
                scope["method"], url, data=body, headers=headers, allow_redirects=False
            )
        except aiohttp.ClientConnectionError:
            await send({"type": "http.response.start", "status": HTTPStatus.BAD_GATEWAY, "headers": []})
            await send({"type": "http.response.body", "body": b"vLLM's server does not answer"})
            return
        async with answer:
            kept = [(k.lower(), v) for k, v in answer.raw_headers if k.lower() not in HOP_HEADERS]
            await send({"type": "http.response.start", "status": answer.status, "headers": kept})
            async for part in answer.content.iter_any():  # raises where the server breaks off
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _connected(self) -> aiohttp.ClientSession:
        """The client, made in the loop that serves: that may be another than the constructor's."""
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
            )
        return self._client


async def _body(receive: Receive) -> bytes:
    parts: list[Any] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return b"".join(parts)


class StampedApp:
    """`app` with the header `x-replica-id` on every answer; GET `DESCRIPTION_PATH` answers `described`.

    `more` returns further facts of other replicas; each such request calls it.
    """

    def __init__(
        self,
        app: App,
        replica_id: str,
        described: Mapping[str, Any],
        more: Callable[[], Awaitable[Mapping[str, Any]]] | None = None,
    ) -> None:
        self._app = app
        self._header = (REPLICA_ID, replica_id.encode())
        self._described = {"replica_id": replica_id, **described}
        self._more = more

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), self._header]
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] == DESCRIPTION_PATH:
            await self._describe(stamped)
        else:
            await self._app(scope, receive, stamped)

    async def _describe(self, send: Send) -> None:
        headers = [(b"content-type", b"application/json")]
        facts = self._described | (dict(await self._more()) if self._more else {})
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(facts, default=str).encode()})
