"""Streamed requests over HTTP/1.1 on the hot path, from the written bytes to a finished exchange.

Knows sockets and HTTP from the client's side; knows nothing of events (`exchange`), schedules,
records or Ray. One timestamp is taken per socket read. The garbage collector is off during a run,
so what is closed must not be part of a reference cycle.
"""

import asyncio
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httptools

from loadgen.exchange import ERROR_CHARS, EventReader, Exchange

IDLE_LIMIT_NS = 3_000_000_000
"""A kept connection older than this is not reused: uvicorn closes idle ones after 5 s."""


class Connection(asyncio.Protocol):
    """One kept-alive connection; serves one exchange at a time and tells `Client` when it ended."""

    def __init__(self, client: "Client", url: str) -> None:
        self._client = client
        self.url = url
        self.transport: asyncio.Transport | None = None
        self.idle_since_ns = 0
        self._exchange: Exchange | None = None
        self._reader: EventReader | None = None
        self._parser: Any = None
        self._body: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._complete = self._keep_alive = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def send(self, exchange: Exchange, request: bytes, timeout_s: float) -> None:
        """Write one request; it is sent now, unless it was when this connection was begun for it."""
        assert self.transport is not None
        self._exchange, self._reader = exchange, EventReader(exchange)
        self._parser, self._complete = httptools.HttpResponseParser(self), False
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self.cut, "timeout", "deadline")
        if exchange.sent_ns is None:
            exchange.sent_ns = time.monotonic_ns()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        exchange = self._exchange
        if exchange is None or self._reader is None:
            self.close()
            return
        if exchange.first_byte_ns is None:
            exchange.first_byte_ns = now_ns
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            exchange.fail("conn_error", "bad_http", str(error))
            self._finish(keep=False)
            return
        if self._body:
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._body.clear()
            if exchange.http_status == 200:
                self._reader.feed(body, now_ns)
            else:
                exchange.error = ((exchange.error or "") + body.decode(errors="replace"))[:ERROR_CHARS]
        if self._complete:
            exchange.judge()
            self._finish(keep=self._keep_alive)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-replica-id" and self._exchange:
            self._exchange.replica_id = value.decode(errors="replace")

    def on_headers_complete(self) -> None:
        if self._exchange:
            self._exchange.http_status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._complete = True
        self._keep_alive = self._parser.should_keep_alive()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._client.forget(self)
        self.cut("truncated", "connection_lost", str(error) if error else None)

    def cut(self, status: str, kind: str, error: str | None = None) -> None:
        """End a running exchange from this side, or because the connection is gone."""
        exchange = self._exchange
        if exchange is None:
            return
        if kind == "connection_lost" and exchange.http_status is None:
            status = "conn_error"
        exchange.fail(status, kind, error)
        self._finish(keep=False)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _finish(self, *, keep: bool) -> None:
        exchange, self._exchange = self._exchange, None
        if self._timer is not None:
            self._timer.cancel()
        # The parser holds this connection's methods: a cycle, if it were kept.
        self._parser = self._reader = self._timer = None
        if exchange is not None:
            exchange.end_ns = time.monotonic_ns()
        if keep:
            self._client.keep(self)
        else:
            self.close()
        if exchange is not None:
            self._client.ended(exchange)


class Client:
    """Sends requests to `urls` in turn over kept-alive connections, without a limit on those in flight.

    `ended` is called once for every exchange, whatever became of it. `api_key` goes into the
    Authorization header and nowhere else. No request is ever repeated.
    """

    def __init__(
        self,
        urls: list[str],
        ended: Callable[[Exchange], None],
        *,
        path: str = "/v1/completions",
        timeout_s: float = 120.0,
        api_key: str | None = None,
    ) -> None:
        self.ended = ended
        self._urls = urls
        # Loading the trusted certificates takes tens of milliseconds: once, and not during the run.
        secure = any(urlsplit(url).scheme == "https" for url in urls)
        tls = ssl.create_default_context() if secure else None
        self._servers = {url: _server(url, path, api_key, tls) for url in urls}
        self._timeout_s = timeout_s
        self._idle: dict[str, deque[Connection]] = defaultdict(deque)
        self._open: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, exchange: Exchange, body: bytes) -> None:
        """Send a request now, over a new connection if none is idle; returns at once."""
        url = self._urls[exchange.seq % len(self._urls)]
        request = self._servers[url].head + b"%d\r\n\r\n" % len(body) + body
        connection = self._take(url)
        if connection is not None:
            connection.send(exchange, request, self._timeout_s)
            return
        task = asyncio.ensure_future(self._connect(url, exchange, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def keep(self, connection: Connection) -> None:
        connection.idle_since_ns = time.monotonic_ns()
        self._idle[connection.url].append(connection)

    def forget(self, connection: Connection) -> None:
        self._open.discard(connection)

    def cut_all(self, kind: str) -> None:
        """End every running exchange as truncated with `kind`, and close all connections."""
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self._open):
            connection.cut("truncated", kind)
            connection.close()
        self._idle.clear()

    def _take(self, url: str) -> Connection | None:
        """The most recently used idle connection that is surely still open."""
        idle, oldest = self._idle[url], time.monotonic_ns() - IDLE_LIMIT_NS
        while idle:
            connection = idle.pop()
            usable = (
                connection in self._open and connection.transport and not connection.transport.is_closing()
            )
            if usable and connection.idle_since_ns > oldest:
                return connection
            connection.close()
        return None

    async def _connect(self, url: str, exchange: Exchange, request: bytes) -> None:
        server = self._servers[url]
        exchange.sent_ns = time.monotonic_ns()
        try:
            async with asyncio.timeout(self._timeout_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self, url), server.host, server.port, ssl=server.tls
                )
        except (OSError, TimeoutError) as error:
            exchange.fail("conn_error", type(error).__name__, str(error))
        except asyncio.CancelledError:
            exchange.fail("conn_error", "interrupted")
        else:
            if connection.transport is not None:
                self._open.add(connection)
                connection.send(exchange, request, self._timeout_s)
                return
            exchange.fail("conn_error", "connection_lost")
        exchange.end_ns = time.monotonic_ns()
        self.ended(exchange)


@dataclass(frozen=True, slots=True)
class _Server:
    """One URL, taken apart once; `head` is everything of a request before its content length."""

    head: bytes
    host: str
    port: int
    tls: ssl.SSLContext | None


def _server(url: str, path: str, api_key: str | None, tls: ssl.SSLContext | None) -> _Server:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    lines = [
        f"POST {parts.path.rstrip('/')}{path} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
    ]
    if api_key:
        lines.append(f"Authorization: Bearer {api_key}")
    head = "\r\n".join([*lines, "Content-Length: "]).encode()
    port = parts.port or (443 if secure else 80)
    return _Server(head, parts.hostname or "", port, tls if secure else None)
