"""The HTTP server of a live view: a page, a stream of states, JSON and metrics, for a few readers.

It answers GET and HEAD alone, and only to the names that it is asked for.
"""

import io
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from types import MappingProxyType
from typing import Any

from analysis.live import prometheus_text
from analysis.live.address import Address
from analysis.live.state import LiveView
from conf.io import terminal
from conf.io.one_line import reason

MOST_CLIENTS = 16
"""Requests that are answered at once, streams among them; another one gets 503 (our choice)."""
HEAD_BYTES = 8 * 2**10
"""Most bytes of a request, its line and its headers (our choice)."""
HEAD_S, SEND_S = 5.0, 5.0
"""A client has so long for its request, and to take what it is sent; then it is dropped (our choice)."""
PERIOD_S = 0.5
"""Least time between two states of a stream (our choice)."""
KEEP_ALIVE_S = 10.0
"""A stream says something this often, so that a reader who is gone is noticed (our choice)."""
GRACE_S = 2.0
"""Longest wait at the end until readers have the last state (our choice)."""
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\nRetry-After: 5\r\n\r\n"
HEADERS = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
PLAIN = "text/plain; charset=utf-8"
Headers = Mapping[str, str]
NO_HEADERS: Headers = MappingProxyType({})


class LiveServer(ThreadingHTTPServer):
    """Serves one view on an address, a thread for each request. Raises OSError if it cannot listen there.

    `address` is the one asked for, with the port that the system chose.
    """

    daemon_threads = True
    request_queue_size = MOST_CLIENTS

    def __init__(self, address: Address, view: LiveView) -> None:
        self.view = view
        self.closing = threading.Event()
        self._places = threading.BoundedSemaphore(MOST_CLIENTS)
        self.address_family = address.family
        super().__init__((address.host, address.port), _Handler)
        self.address = Address(address.host, self.server_address[1])

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer would look its own name up, for minutes where nobody answers
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, or say at once that there is no room."""
        if not self._places.acquire(blocking=False):
            with suppress(OSError):
                request.setblocking(False)
                request.send(BUSY)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who is gone is nobody's concern; any other error is said in one line."""
        error = sys.exception() if sys.version_info >= (3, 12) else sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            terminal.note(
                f"the live view could not answer a request: {type(error).__name__}: {reason(error)}"
            )

    def end(self) -> None:
        """Send the last state to whoever reads a stream, wait a moment for them, and stop listening."""
        self.closing.set()
        deadline_s = time.monotonic() + GRACE_S
        for _ in range(MOST_CLIENTS):
            if not self._places.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
                break
        self.shutdown()
        self.server_close()


@contextmanager
def serving(address: Address, view: LiveView, flag: str) -> Iterator[LiveServer]:
    """Serve a view until the end of the block. Raises ConfigError that names the flag if it cannot."""
    try:
        server = LiveServer(address, view)
    except OSError as error:
        raise address.refusal(flag, error) from error
    thread = threading.Thread(target=server.serve_forever, name="live view", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.end()


def invitation(address: Address) -> str:
    """One line that says where the page is, and who can read it."""
    if address.is_loopback:
        return f"live view: {address.url}"
    return f"live view: {address.url} (without a password: whoever reaches this port can read it)"


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "maxqps", ""
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        head = self._head()
        self.connection.settimeout(SEND_S)
        self.close_connection = True
        if len(head) > HEAD_BYTES:
            self.requestline, self.command = "", "GET"
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif head:
            self.rfile = io.BytesIO(head)
            self.handle_one_request()

    def _head(self) -> bytes:
        """The request up to its empty line, or more than `HEAD_BYTES`; empty if it does not come in time."""
        head, deadline_s = b"", time.monotonic() + HEAD_S
        while b"\r\n\r\n" not in head and len(head) <= HEAD_BYTES:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return b""
            self.connection.settimeout(left_s)
            piece = self.connection.recv(HEAD_BYTES)
            if not piece:
                return b""
            head += piece
        return head

    def do_GET(self) -> None:
        """Answer with what the path names."""
        path, view = self.path.partition("?")[0], self.server.view
        if not self.server.address.is_named(self.headers.get("Host", "")):
            self._answer(b"this name is not the one that was asked for\n", PLAIN, HTTPStatus.FORBIDDEN)
        elif path == "/":
            html, policy = live_page(view.text(view.state))
            self._answer(html, "text/html; charset=utf-8", more={"Content-Security-Policy": policy})
        elif path == "/events":
            self._events()
        elif path == "/state":
            self._answer(f"{view.text(view.state)}\n".encode(), "application/json")
        elif path == "/metrics":
            self._answer(prometheus_text.metrics_page(view.state), prometheus_text.KIND)
        else:
            self._answer(b"/, /events, /state, /metrics\n", PLAIN, HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET

    def _events(self) -> None:
        """States as they change, until the reader is gone or the view closes; the last one is always sent."""
        self._head_of("text/event-stream", HTTPStatus.OK, {"X-Accel-Buffering": "no"})
        if self.command == "HEAD":
            return
        view, last, said_s, closing = self.server.view, None, time.monotonic(), False
        while True:
            state = view.state
            if state is not last:
                self._send(f"data: {view.text(state)}\n\n".encode())
                last, said_s = state, time.monotonic()
            elif time.monotonic() - said_s >= KEEP_ALIVE_S:
                self._send(b":\n\n")
                said_s = time.monotonic()
            if closing:
                return
            closing = self.server.closing.wait(PERIOD_S)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request in plain words that repeat nothing of it."""
        status = HTTPStatus(code)
        self.request_version = (
            self.protocol_version
        )  # of a garbled request it is unknown, and no header is sent
        if status is HTTPStatus.NOT_IMPLEMENTED:
            allowed = {"Allow": "GET, HEAD"}
            self._answer(b"GET and HEAD alone\n", PLAIN, HTTPStatus.METHOD_NOT_ALLOWED, allowed)
        else:
            self._answer(f"{status.phrase}\n".encode(), PLAIN, status)

    def _answer(
        self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, more: Headers = NO_HEADERS
    ) -> None:
        self._head_of(kind, status, {"Content-Length": str(len(body)), **more})
        if self.command != "HEAD":
            self._send(body)

    def _head_of(self, kind: str, status: HTTPStatus, more: Headers) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **HEADERS, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, data: bytes) -> None:
        """Raises TimeoutError for a reader who does not take it in time."""
        self.connection.sendall(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: the terminal belongs to the run."""


TEMPLATE = Path(__file__).with_name("page.html")
FIRST_STATE, NONCE = "null /* the first state */", "NONCE"
"""Stand in the template where the state comes, inside an element that no browser runs, and where each answer
has a word of its own, by which its one style and its one script are known."""
POLICY = (
    "default-src 'none'; style-src 'nonce-{0}'; script-src 'nonce-{0}'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def live_page(text: str) -> tuple[bytes, str]:
    """The page that begins with the state `text` (JSON in ASCII), and the policy to send with it."""
    # JSON needs these letters in strings only, where it may write them so; HTML then ends nothing early.
    safe = text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
    nonce = secrets.token_urlsafe()
    html = TEMPLATE.read_text().replace(NONCE, nonce).replace(FIRST_STATE, safe)
    return html.encode(), POLICY.format(nonce)
