"""One kept-alive HTTP/1.1 connection: from the written bytes of a request to a finished exchange.

One timestamp is taken per socket read. The garbage collector is off during a run, so what is closed must
not be part of a reference cycle.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Any

import httptools

from conf.io.http_get import NOWHERE, PLAIN, REDIRECTS, Inflater, is_packed, redirect_text
from conf.io.one_line import printable
from loadgen.fleet.exchange import WORD_CHARS, Exchange
from loadgen.fleet.sse import ErrorReader, EventReader

if TYPE_CHECKING:
    from loadgen.fleet.http_client import Client

HEAD_BYTES_LIMIT = 2**16
"""Longest head, and longest error with its head: HAProxy takes 16 kB of headers (our choice)."""
BARREN_BYTES_LIMIT = 2**20
"""Most bytes of a good answer without a token among them: three thousand silent events (our choice)."""
UNPACKED_BYTES_LIMIT = 2**20
"""Most bytes that a read of a compressed answer may hold: some three thousand events (our choice)."""


class Connection(asyncio.Protocol):
    """One kept-alive connection; serves one exchange at a time and reports its end to `Client`."""

    __slots__ = (
        "_barren_bytes",
        "_client",
        "_delimited",
        "_encoding",
        "_inflater",
        "_kept",
        "_location",
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
        self._encoding, self._location = PLAIN, NOWHERE
        self._inflater: Inflater | None = None
        self._barren_bytes = 0  # that came since the last token
        self._kept: bool | None = None  # of a complete answer: can the next request use this connection?

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def send(self, exchange: Exchange, request: bytes) -> None:
        assert self.transport is not None
        self.exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._delimited, self._kept, self._barren_bytes = False, None, 0
        self._encoding, self._location, self._inflater = PLAIN, NOWHERE, None
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        exchange = self.exchange
        if exchange is None:
            self.close()
            return
        if exchange.first_byte_ns is None:
            exchange.first_byte_ns = now_ns
        text = exchange.text
        events, silent = text.events, text.silent + text.silent_end
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._kept is None:
                exchange.fail("conn_error", "bad_http", str(error))
            self._kept = False
        if text.events != events:
            exchange.output_at(now_ns)
            self._barren_bytes = 0
        else:
            if text.silent + text.silent_end != silent:
                exchange.silent_at(now_ns)
            self._refuse_endless(exchange, len(data))
        if self._kept is not None:
            exchange.judge()
            self._finish(keep=self._kept)

    def _refuse_endless(self, exchange: Exchange, size: int) -> None:
        """Give up an answer of which too much has come without a token."""
        self._barren_bytes += size
        status = exchange.http_status
        limit = BARREN_BYTES_LIMIT if exchange.is_success else HEAD_BYTES_LIMIT
        if self._barren_bytes <= limit or self._kept is not None:
            return
        self._kept = False
        if status is None:
            exchange.fail("conn_error", "long_head", f"its head is longer than {limit} bytes")
        elif not exchange.is_success:
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
        elif name == b"content-encoding":
            self._encoding = self._client.redact(value.decode(errors="replace"))[:WORD_CHARS]
        elif name == b"location":
            self._location = self._client.redact(value.decode(errors="replace"))
        elif name == b"x-time-scale" and self.exchange:
            self.exchange.time_scale = _positive(value)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._kept is not None:
            self._kept = False  # a second answer, which nobody asked for
        elif self.exchange and status >= 200:  # early hints and their like come before the answer
            self.exchange.http_status = status
            if status in REDIRECTS:
                self.exchange.fail("http_error", str(status), redirect_text(self._location))
            if is_packed(self._encoding):
                self._expect_packed(self.exchange)
            if not self.exchange.is_success:
                self._reader = ErrorReader(self.exchange, self._client.redact)
                return
            self._client.check_clock(self.exchange)
            self._reader = EventReader(self.exchange, self._client.redact)

    def _expect_packed(self, exchange: Exchange) -> None:
        """Prepare for a compressed body, which was not asked for; give the answer up if it cannot be read."""
        limit = UNPACKED_BYTES_LIMIT if exchange.is_success else HEAD_BYTES_LIMIT
        try:
            self._inflater = Inflater(self._encoding, limit)
        except ValueError as error:
            self._refuse_packed(exchange, error)

    def _refuse_packed(self, exchange: Exchange, error: ValueError) -> None:
        """Give up an answer whose body cannot be read; a status that is no success says more."""
        kind = "content_encoding" if exchange.is_success else str(exchange.http_status)
        exchange.fail("http_error", kind, str(error))
        self._kept = False

    def on_body(self, body: bytes) -> None:
        if self._inflater is not None and self.exchange is not None:
            packed_bytes = len(body)
            try:
                body = self._inflater.feed(body)
            except ValueError as error:
                self._refuse_packed(self.exchange, error)
                return
            self._barren_bytes += max(len(body) - packed_bytes, 0)
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


def _positive(value: bytes) -> float:
    """A number of a header; 0, which no clock runs at, if it is none."""
    try:
        return float(value)
    except ValueError:
        return 0.0
