"""Sends streamed requests over HTTP/1.1 on the hot path: a connection for each, new or kept, and its timeout.

A name is looked up before the load and not during it.
"""

import asyncio
import errno
import time
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from conf.io.http_get import failure_text
from loadgen.fleet.addresses import chosen, server
from loadgen.fleet.client_plan import ClientPlan
from loadgen.fleet.http_connection import Connection
from loadgen.fleet.sse import Exchange, Redact

IDLE_LIMIT_NS = 3_000_000_000
"""A kept connection older than this is not reused: uvicorn closes idle ones after 5 s."""
SWEEP_S = 1.0
"""Longest period between two checks for requests beyond the timeout."""
SHORTAGES = {
    errno.EMFILE: "no_file",
    errno.ENFILE: "no_file",
    errno.EADDRNOTAVAIL: "no_port",
    errno.ENOBUFS: "no_memory",
    errno.ENOMEM: "no_memory",
}
"""Errors that keep this machine from opening a connection and are not the server's failure."""


class Client:
    """Sends requests over kept-alive connections, without a limit on those in flight; repeats none.

    A request of stream s goes to the s-th URL of the plan at `path`, one without to any, by `chosen`. `ended`
    is called once for every exchange. The key of `access` goes into the Authorization header and out of what
    a server says. An answer of a server whose clock is not as fast as the plan's fails.
    """

    def __init__(
        self, plan: ClientPlan, ended: Callable[[Exchange], None], path: str = "/v1/completions"
    ) -> None:
        urls, access = plan.urls, plan.access
        self.redact: Redact = access.redact
        self._ended = ended
        self._time_scale = plan.time_scale
        self._sticky = plan.sticky
        # Loading the trusted certificates takes tens of milliseconds: once, and not during the run.
        secure = any(urlsplit(url).scheme == "https" for url in urls)
        tls = access.tls() if secure else None
        self._server = partial(server, path=path, access=access, tls=tls)
        self._urls = urls
        self._servers = {url: self._server(url) for url in urls}
        self._timeout_s = plan.real_timeout_s
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
        except asyncio.CancelledError:
            exchange.fail("conn_error", "interrupted")
        except Exception as error:  # noqa: BLE001  the boundary of a request: every request gets an outcome
            shortage = SHORTAGES.get(error.errno or 0) if isinstance(error, OSError) else None
            status = "missed" if shortage else "conn_error"
            exchange.fail(status, shortage or type(error).__name__, self.redact(failure_text(error)))
        else:
            if connection.transport is not None:
                self._open[connection] = None
                connection.send(exchange, request)
                return
            exchange.fail("conn_error", "connection_lost")
        self.end(exchange)
