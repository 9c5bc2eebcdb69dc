"""One streamed request: HTTP/1.1 and SSE on the hot path, from the written bytes to a finished exchange.

Knows the wire format of an OpenAI-compatible server from the client's side; knows nothing of
schedules, records or Ray. One timestamp is taken per socket read, and only events that are not
plainly one more token are parsed.
"""

import asyncio
import json
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools

IDLE_LIMIT_NS = 3_000_000_000
"""A kept connection older than this is not reused: uvicorn closes idle ones after 5 s."""
ERROR_CHARS = 200
CONTENT_KEYS = ("content", "reasoning_content", "reasoning", "tool_calls")
_ORDINARY = b'"finish_reason":null'


@dataclass(slots=True)
class Exchange:
    """What happened to one request; times are monotonic ns, None where the event never came."""

    seq: int
    expected_tokens: int
    sent_ns: int | None = None
    first_byte_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    end_ns: int | None = None
    status: str | None = None
    error_kind: str | None = None
    error: str | None = None
    http_status: int | None = None
    replica_id: str | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    engine: dict[str, Any] | None = None
    events: int = 0
    reads: int = 0
    done: bool = False
    token_reads_ns: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Output tokens: the server's count when it came, else the events seen so far."""
        reported = (self.usage or {}).get("completion_tokens")
        return reported if isinstance(reported, int) else self.events

    def fail(self, status: str, kind: str, error: str | None = None) -> None:
        """Record the first reason of a failure; a later one never replaces it."""
        if self.status is None:
            self.status, self.error_kind = status, kind
            self.error = error[:ERROR_CHARS] if error else self.error

    def judge(self) -> None:
        """Name the outcome of a complete answer: ok only with [DONE], usage and the asked tokens."""
        if self.http_status != 200:
            self.fail("http_error", str(self.http_status))
        elif not self.events:
            self.fail("truncated", "no_token")
        elif not self.done:
            self.fail("truncated", "no_done")
        elif self.usage is None:
            self.fail("truncated", "no_usage")
        elif self.tokens != self.expected_tokens:
            self.fail("truncated", "token_count", f"{self.tokens} tokens instead of {self.expected_tokens}")
        elif self.status is None:
            self.status = "ok"


class EventReader:
    """Turns body bytes, cut anywhere, into the facts of an `Exchange`."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._rest = b""

    def feed(self, body: bytes, now_ns: int) -> None:
        """Take the body bytes of one socket read that happened at `now_ns`."""
        data = self._rest + body if self._rest else body
        if b"\r" in data:
            # Hold back a final CR: its LF may come with the next read.
            held = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n") if not held else data[:-1].replace(b"\r\n", b"\n") + b"\r"
        end = data.rfind(b"\n\n")
        if end < 0:
            self._rest = data
            return
        complete, self._rest = data[:end], data[end + 2 :]
        exchange, before = self._exchange, self._exchange.events
        count = complete.count(b"\n\n") + 1
        if exchange.events and complete.count(_ORDINARY) == count and b'"error"' not in complete:
            exchange.events += count
        else:
            for event in complete.split(b"\n\n"):
                self._event(event)
        if exchange.events > before:
            if exchange.first_token_ns is None:
                exchange.first_token_ns = now_ns
            exchange.last_token_ns = now_ns
            exchange.reads += 1
            exchange.token_reads_ns.append(now_ns)

    def _event(self, event: bytes) -> None:
        lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
        data = b"\n".join(lines)
        if not data:
            return
        if data == b"[DONE]":
            self._exchange.done = True
            return
        try:
            message = json.loads(data)
        except ValueError:
            self._exchange.fail("http_error", "bad_event", data[:ERROR_CHARS].decode(errors="replace"))
            return
        if isinstance(message, dict):
            self._message(message)

    def _message(self, message: dict[str, Any]) -> None:
        exchange = self._exchange
        if message.get("error") is not None:
            exchange.fail("http_error", "in_band", json.dumps(message["error"]))
            return
        if isinstance(message.get("usage"), dict):
            exchange.usage = message["usage"]
        if isinstance(message.get("engine"), dict):
            exchange.engine = message["engine"]
        choices = message.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return
        exchange.finish_reason = choice.get("finish_reason") or exchange.finish_reason
        if _carries_output(choice):
            exchange.events += 1


def _carries_output(choice: dict[str, Any]) -> bool:
    """True for a completion's text (even empty: some tokens print nothing) and a delta with content."""
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(delta.get(key) for key in CONTENT_KEYS)
    return "text" in choice


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
        """Write one request and take its time of sending."""
        assert self.transport is not None
        self._exchange, self._reader = exchange, EventReader(exchange)
        self._parser, self._complete = httptools.HttpResponseParser(self), False
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self.cut, "timeout", "deadline")
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
        self._timeout_s = timeout_s
        self._idle: dict[str, deque[Connection]] = defaultdict(deque)
        self._open: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._heads = {url: _head(url, path, api_key) for url in urls}

    @property
    def connections(self) -> int:
        """Connections open now, idle ones included."""
        return len(self._open)

    def start(self, exchange: Exchange, body: bytes) -> None:
        """Send a request now; returns at once."""
        url = self._urls[exchange.seq % len(self._urls)]
        request = self._heads[url] + b"%d\r\n\r\n" % len(body) + body
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
        parts = urlsplit(url)
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if secure else 80)
        try:
            async with asyncio.timeout(self._timeout_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self, url), parts.hostname or "", port, ssl=secure
                )
        except (OSError, TimeoutError) as error:
            exchange.fail("conn_error", type(error).__name__, str(error))
        except asyncio.CancelledError:
            exchange.fail("conn_error", "interrupted")
        else:
            self._open.add(connection)
            connection.send(exchange, request, self._timeout_s)
            return
        exchange.end_ns = time.monotonic_ns()
        self.ended(exchange)


def _head(url: str, path: str, api_key: str | None) -> bytes:
    """Everything of a request before its content length."""
    parts = urlsplit(url)
    lines = [
        f"POST {parts.path.rstrip('/')}{path} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
    ]
    if api_key:
        lines.append(f"Authorization: Bearer {api_key}")
    return "\r\n".join([*lines, "Content-Length: "]).encode()
