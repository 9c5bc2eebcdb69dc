"""Sends streamed requests over HTTP/1.1 on the hot path: the plan, the servers, connections, timeouts."""

import asyncio
import errno
import socket
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from conf import Experiment
from conf.io.http_get import PLAIN, Access, failure_text
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.http_connection import Connection
from loadgen.fleet.process import WatchedProcess
from loadgen.fleet.sse import Redact


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """The requests of an experiment to the servers at `urls`.

    `salt` separates the prompts of this run from those of others. Load actors end with the process `driver`.
    """

    experiment: Experiment
    urls: Sequence[str]
    access: Access
    salt: int
    driver: WatchedProcess = field(default_factory=WatchedProcess.own)


def chosen(seq: int, count: int) -> int:
    """One of `count` URLs for request (or session) `seq`: as good as random, and the same in every run.

    Every k-th arrival would be a smoother process. SplitMix64's mixing (Steele, Lea, Flood, OOPSLA 2014).
    """
    mask = 2**64 - 1
    mixed = (seq + 1) * 0x9E3779B97F4A7C15 & mask
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & mask
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & mask
    return (mixed ^ mixed >> 31) % count


@dataclass(frozen=True, slots=True)
class Server:
    """One URL, taken apart and looked up once; `head` is all of a request before its content length.

    `addresses` are tried in order.
    """

    head: bytes
    host: str
    addresses: Sequence[str]
    port: int
    tls: ssl.SSLContext | None

    async def connected(self, protocol: Callable[[], Connection]) -> Connection:
        """A connection to the first address that takes one. Raises what the last one was refused with."""
        loop, name = asyncio.get_running_loop(), self.host if self.tls else None

        async def connect(address: str) -> Connection:
            _, made = await loop.create_connection(
                protocol, address, self.port, ssl=self.tls, server_hostname=name
            )
            return made

        for address in self.addresses[:-1]:
            with suppress(OSError):
                return await connect(address)
        return await connect(self.addresses[-1])


def server(url: str, path: str, access: Access, tls: ssl.SSLContext | None) -> Server:
    """The server behind a URL, which takes requests at `path`; its name is looked up now, which may block."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    lines = [
        f"POST {parts.path.rstrip('/')}{path} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        f"Accept-Encoding: {PLAIN}",
        *(f"{name}: {value}" for name, value in access.headers.items()),
    ]
    head = "\r\n".join([*lines, "Content-Length: "]).encode()
    port = parts.port or (443 if secure else 80)
    host = parts.hostname or ""
    return Server(head, host, _addresses(host, port), port, tls if secure else None)


def _addresses(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, the best one first; its name again if it has none now."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError):  # ValueError: no name of a host
        return (host,)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in addresses)) or (host,)


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
    is called once for every exchange. The key of `access` is taken out of what a server says.
    """

    def __init__(
        self, plan: ClientPlan, ended: Callable[[Exchange], None], path: str = "/v1/completions"
    ) -> None:
        urls, access, experiment = plan.urls, plan.access, plan.experiment
        self.redact: Redact = access.redact
        self._ended, self._time_scale = ended, experiment.time_scale
        # The session of a request then chooses its URL.
        self._sticky = experiment.routing.policy == "client_side"
        # Loading the trusted certificates takes tens of milliseconds: once, and not during the run.
        secure = any(urlsplit(url).scheme == "https" for url in urls)
        tls = access.tls() if secure else None
        self._server = partial(server, path=path, access=access, tls=tls)
        self._urls = urls
        self._servers = {url: self._server(url) for url in urls}
        self._timeout_s = experiment.request_timeout_s / experiment.time_scale
        self._sweep: asyncio.TimerHandle | None = None
        self._idle: dict[str, deque[tuple[int, Connection]]] = defaultdict(deque)
        self._open: dict[Connection, None] = {}
        self._connecting: dict[asyncio.Task[None], Exchange] = {}

    async def retarget(self, urls: list[str]) -> None:
        """Send what starts after this to these URLs, of the first ones' scheme, at their addresses now."""
        # The old ones are still being connected to.
        self._servers |= await asyncio.to_thread(lambda: {url: self._server(url) for url in urls})
        self._urls = urls

    def start(self, exchange: Exchange, body: bytes) -> None:
        """Send a request now, over a new connection if none is idle; returns at once."""
        plan = exchange.plan
        has_session, stream = plan.session >= 0, plan.stream
        if stream is None:
            by = plan.session if self._sticky and has_session else plan.seq
            stream = chosen(by, len(self._urls))
        url, end = self._urls[stream], b"\r\n\r\n"
        if has_session:
            end = b"\r\nx-session-id: session-%d\r\n\r\n" % plan.session
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
        """Check soon for what is overdue: one timer for all costs less than one for each."""
        after_s = min(SWEEP_S, self._timeout_s / 8)
        self._sweep = asyncio.get_running_loop().call_later(after_s, self._cut_overdue)

    def _cut_overdue(self) -> None:
        """End what has run for longer than the timeout."""
        self._sweep_later()
        oldest_ns = time.monotonic_ns() - int(self._timeout_s * 1e9)
        overdue = [slot for slot in self._open if slot.exchange and (slot.exchange.sent_ns or 0) < oldest_ns]
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
