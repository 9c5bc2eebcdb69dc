"""ASGI applications of replicas: their lifespan, their name on every answer, and a server behind one."""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
            await self._hand_through(scope, receive, send)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
        await self._shutdown()

    async def _hand_through(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await Request(scope, receive).body()
        query = scope.get("query_string", b"").decode()
        url = f"{self._url}{scope['path']}{'?' if query else ''}{query}"
        headers = [(k.decode(), v.decode("latin-1")) for k, v in scope["headers"] if k not in HOP_HEADERS]
        try:
            answer = await self._connected().request(
                scope["method"], url, data=body, headers=headers, allow_redirects=False
            )
        except aiohttp.ClientConnectionError:
            refusal = Response("vLLM's server does not answer", HTTPStatus.BAD_GATEWAY)
            await refusal(scope, receive, send)
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


class ReplicaApp:
    """`app` with the header `x-replica-id` on every answer; `pages` are the facts at further paths."""

    def __init__(
        self,
        app: ASGIApp,
        replica_id: str,
        pages: Mapping[str, Callable[[], Awaitable[Mapping[str, Any]]]] | None = None,
    ) -> None:
        self._app = app
        self._replica_id = replica_id
        self._pages = pages or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                header = REPLICA_ID, self._replica_id.encode()
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        page = self._pages.get(scope.get("path", ""))
        app = self._app if page is None else JSONResponse({"replica_id": self._replica_id, **await page()})
        await app(scope, receive, stamped)
