"""Streamed requests over HTTP/1.1 on the hot path, from the written bytes to a finished exchange.

Knows sockets and HTTP from the client's side; knows nothing of events (`sse`), schedules,
records or Ray. One timestamp is taken per socket read, a name is looked up before the load and not during it.
The garbage collector is off during a run, so what is closed must not be part of a reference cycle.
"""

import asyncio
import errno
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httptools

from conf.io.one_line import printable
from conf.io.secret import Secret
from loadgen.fleet.addresses import chosen, server
from loadgen.fleet.sse import (
    STAMP_DIGITS,
    WORD_CHARS,
    ErrorReader,
    EventReader,
    Exchange,
    Redact,
    StampedReader,
)

IDLE_LIMIT_NS = 3_000_000_000
"""A kept connection older than this is not reused: uvicorn closes idle ones after 5 s."""
SWEEP_S = 1.0
"""Longest period between two checks for requests beyond the timeout."""
TIMEOUT_S = 120.0
HEAD_BYTES_LIMIT = 2**16
"""Longest head, with the answers (1xx) before it, and longest error with its head that are waited for:
HAProxy takes 16 kB of headers (our choice)."""
BARREN_BYTES_LIMIT = 2**20
"""Most bytes of a good answer without a token among them: three thousand events that say nothing, or what
follows the last one (our choice)."""
SHORTAGES = {
    errno.EMFILE: "no_file",
    errno.ENFILE: "no_file",
    errno.EADDRNOTAVAIL: "no_port",
    errno.ENOBUFS: "no_memory",
    errno.ENOMEM: "no_memory",
}
"""Errors that keep this machine from opening a connection and are not the server's failure."""


class Connection(asyncio.Protocol):
    """One kept-alive connection; serves one exchange at a time and reports its end to `Client`."""

    __slots__ = (
        "_barren_bytes",
        "_client",
        "_delimited",
        "_kept",
        "_parser",
        "_reader",
        "exchange",
        "transport",
        "url",
    )

    def __init__(self, client: "Client", url: str) -> None:
        self._client = client
        self.url = url
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self._reader: EventReader | ErrorReader | None = None
        self._parser: Any = None
        self._delimited = False
        self._barren_bytes = 0  # that came since the last token
        self._kept: bool | None = None  # of a complete answer: can the next request use this connection?

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def send(self, exchange: Exchange, request: bytes) -> None:
        assert self.transport is not None
        self.exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._delimited, self._kept, self._barren_bytes = False, None, 0
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        exchange = self.exchange
        if exchange is None:
            self.close()
            return
        if exchange.first_byte_ns is None:
            exchange.first_byte_ns = now_ns
        events = exchange.events
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._kept is None:
                exchange.fail("conn_error", "bad_http", str(error))
            self._kept = False
        if exchange.events != events:
            exchange.output_at(now_ns)
            self._barren_bytes = 0
        else:
            self._refuse_endless(exchange, len(data))
        if self._kept is not None:
            exchange.judge()
            self._finish(keep=self._kept)

    def _refuse_endless(self, exchange: Exchange, size: int) -> None:
        """Give up an answer of which too much has come without a token."""
        self._barren_bytes += size
        status = exchange.http_status
        limit = BARREN_BYTES_LIMIT if status == 200 else HEAD_BYTES_LIMIT
        if self._barren_bytes <= limit or self._kept is not None:
            return
        self._kept = False
        if status is None:
            exchange.fail("conn_error", "long_head", f"its head is longer than {limit} bytes")
        elif status != 200:
            exchange.fail("http_error", str(status), f"the answer is longer than {limit} bytes")
        else:
            exchange.fail("http_error", "endless", f"{limit} bytes without a token")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._kept is not None:
            return
        name = name.lower()
        if name == b"x-replica-id" and self.exchange:
            replica = self._client.redact(value.decode(errors="replace"))
            self.exchange.replica_id = printable(replica[:WORD_CHARS])
        elif name in (b"content-length", b"transfer-encoding"):
            self._delimited = True
        elif name == b"x-accepted-virtual-ns" and self.exchange and value.isdigit():
            self.exchange.accepted_virtual_ns = int(value[:STAMP_DIGITS])
        elif name == b"x-time-scale" and self.exchange:
            self.exchange.time_scale = _positive(value)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._kept is not None:
            self._kept = False  # a second answer, which nobody asked for
        elif self.exchange and status >= 200:  # early hints and their like come before the answer
            self.exchange.http_status = status
            if status != 200:
                self._reader = ErrorReader(self.exchange, self._client.redact)
                return
            self._client.check_clock(self.exchange)
            stamped = self.exchange.accepted_virtual_ns is not None
            self._reader = (StampedReader if stamped else EventReader)(self.exchange, self._client.redact)

    def on_body(self, body: bytes) -> None:
        if self._reader is not None:
            self._reader.feed(body)

    def on_message_complete(self) -> None:
        if self._reader is not None:
            self._reader.end()
            self._kept, self._reader = self._parser.should_keep_alive(), None

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._client.forget(self)
        exchange = self.exchange
        if exchange is None:
            return
        if exchange.http_status is None:
            self.cut("conn_error", "connection_lost", str(error) if error else None)
        elif error is None and not self._delimited:
            exchange.judge()
            self._finish(keep=False)
        else:
            self.cut("truncated", "connection_lost", str(error) if error else None)

    def cut(self, status: str, kind: str, error: str | None = None) -> None:
        """End a running exchange before its answer is whole."""
        if self.exchange is not None:
            self.exchange.fail(status, kind, error)
            self._finish(keep=False)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _finish(self, *, keep: bool) -> None:
        exchange, self.exchange = self.exchange, None
        if self._reader is not None:
            self._reader.end()
        # The parser holds this connection's methods: a cycle, if it were kept.
        self._parser = self._reader = None
        if keep:
            self._client.keep(self)
        else:
            self.close()
        if exchange is not None:
            self._client.end(exchange)


class Client:
    """Sends requests to `urls` over kept-alive connections, without a limit on those in flight.

    A request of stream s goes to the s-th URL, one without a stream to any of them, by `chosen`. One of a
    session says so in the header x-session-id; with `sticky` its session alone chooses the URL.

    `ended` is called once for every exchange, whatever became of it. `key` goes into the Authorization
    header, and what a server says is kept without it. No request is ever repeated. Host names are looked up
    here and by `retarget`. `time_scale` is how many times as fast as the real clock a server's must run; an
    answer from another one fails.
    """

    def __init__(
        self,
        urls: list[str],
        ended: Callable[[Exchange], None],
        *,
        path: str = "/v1/completions",
        timeout_s: float = TIMEOUT_S,
        key: Secret | None = None,
        time_scale: float = 1.0,
        sticky: bool = False,
    ) -> None:
        self.redact: Redact = key.redact if key else str
        self._ended = ended
        self._time_scale = time_scale
        self._sticky = sticky
        # Loading the trusted certificates takes tens of milliseconds: once, and not during the run.
        secure = any(urlsplit(url).scheme == "https" for url in urls)
        tls = ssl.create_default_context() if secure else None
        self._server = partial(server, path=path, key=key, tls=tls)
        self._urls = urls
        self._servers = {url: self._server(url) for url in urls}
        self._timeout_s = timeout_s
        self._sweep: asyncio.TimerHandle | None = None
        self._idle: dict[str, deque[tuple[int, Connection]]] = defaultdict(deque)
        self._open: dict[Connection, None] = {}
        self._connecting: dict[asyncio.Task[None], Exchange] = {}

    async def retarget(self, urls: list[str]) -> None:
        """Send what starts after this to these URLs, of the first ones' scheme, at their addresses now."""
        found = await asyncio.to_thread(lambda: {url: self._server(url) for url in urls})
        self._servers |= found  # the old ones are still being connected to
        self._urls = urls

    def start(
        self, exchange: Exchange, body: bytes, stream: int | None = None, session: int | None = None
    ) -> None:
        """Send a request now, over a new connection if none is idle; returns at once."""
        if stream is None:
            by = session if self._sticky and session is not None else exchange.seq
            stream = chosen(by, len(self._urls))
        url, end = self._urls[stream], b"\r\n\r\n"
        if session is not None:
            end = b"\r\nx-session-id: session-%d\r\n\r\n" % session
        request = b"".join((self._servers[url].head, b"%d" % len(body), end, body))
        exchange.sent_ns = time.monotonic_ns()
        if self._sweep is None:
            self._sweep_later()
        connection = self._take(url)
        if connection is not None:
            connection.send(exchange, request)
            return
        task = asyncio.ensure_future(self._connect(url, exchange, request))
        self._connecting[task] = exchange
        task.add_done_callback(self._connecting.pop)

    def check_clock(self, exchange: Exchange) -> None:
        """Fail an exchange with a server whose clock is not as fast as ours: its latencies mean nothing."""
        if exchange.time_scale != self._time_scale:
            clocks = f"the server's clock runs at {exchange.time_scale:g}, the load's at {self._time_scale:g}"
            remedy = f"start that server with engine.time_scale={self._time_scale:g}"
            exchange.fail("http_error", "time_scale", f"{clocks}; {remedy}")

    def keep(self, connection: Connection) -> None:
        self._idle[connection.url].append((time.monotonic_ns(), connection))

    def forget(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    def end(self, exchange: Exchange) -> None:
        """Hand an exchange back, whose outcome is known, unless that has been done."""
        if exchange.end_ns is None:
            exchange.end_ns = time.monotonic_ns()
            self._ended(exchange)

    def cut_all(self, kind: str) -> None:
        """End every running exchange with `kind`, as truncated if it had a connection, and close those."""
        for task, exchange in list(self._connecting.items()):
            if task.cancel():  # one that has not begun to run never will: its exchange is ended here
                exchange.fail("conn_error", kind)
                self.end(exchange)
        for connection in list(self._open):
            connection.cut("truncated", kind)
            connection.close()
        self._idle.clear()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def _sweep_later(self) -> None:
        after_s = min(SWEEP_S, self._timeout_s / 8)
        self._sweep = asyncio.get_running_loop().call_later(after_s, self._cut_overdue)

    def _cut_overdue(self) -> None:
        """End what has run for longer than the timeout; one timer for all costs less than one for each."""
        self._sweep_later()
        oldest_ns = time.monotonic_ns() - int(self._timeout_s * 1e9)
        overdue = [one for one in self._open if one.exchange and (one.exchange.sent_ns or 0) < oldest_ns]
        for connection in overdue:
            connection.cut("timeout", "deadline")

    def _take(self, url: str) -> Connection | None:
        """The most recently used idle connection that is surely still open."""
        idle, oldest = self._idle[url], time.monotonic_ns() - IDLE_LIMIT_NS
        while idle:
            since_ns, connection = idle.pop()
            usable = (
                connection in self._open and connection.transport and not connection.transport.is_closing()
            )
            if usable and since_ns > oldest:
                return connection
            connection.close()
        return None

    async def _connect(self, url: str, exchange: Exchange, request: bytes) -> None:
        server = self._servers[url]
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await server.connected(lambda: Connection(self, url))
        except (OSError, ValueError) as error:  # ValueError: no name of a host
            shortage = SHORTAGES.get(error.errno or 0) if isinstance(error, OSError) else None
            status = "missed" if shortage else "conn_error"
            exchange.fail(status, shortage or type(error).__name__, self.redact(str(error)))
        except asyncio.CancelledError:
            exchange.fail("conn_error", "interrupted")
        else:
            if connection.transport is not None:
                self._open[connection] = None
                connection.send(exchange, request)
                return
            exchange.fail("conn_error", "connection_lost")
        self.end(exchange)


def _positive(value: bytes) -> float:
    """A number of a header; 0, which no clock runs at, if it is none."""
    try:
        return float(value)
    except ValueError:
        return 0.0
