"""An SSE server of known behaviour for the client's tests: a script of byte pieces per request."""

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.machine.patience import PATIENCE_S

Script = Callable[[dict[str, Any]], list[bytes | float | None]]
"""From the request body to what is written: bytes, a pause in seconds, or None to drop the connection."""


def sized(body: bytes, status: str = "200 OK", *lines: str) -> bytes:
    """A whole answer of HTTP with its length."""
    head = [f"HTTP/1.1 {status}", *lines, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(head).encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(payload: Any) -> bytes:
    """One SSE event as a chunk of HTTP."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload, separators=(",", ":")).encode()
    return chunk(b"data: " + data + b"\n\n")


def head(status: str = "200 OK", extra: str = "") -> bytes:
    lines = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n{extra}\r\n"
    )
    return lines.encode()


def token(text: str = " a", finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": None})


def usage(prompt: int, output: int, **more: Any) -> bytes:
    tree = {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}, **more}
    return event(tree)


END = event(b"[DONE]") + b"0\r\n\r\n"


def answer(body: dict[str, Any], pause_s: float = 0.0) -> list[bytes | float | None]:
    """A whole, correct answer: the asked number of tokens, usage, [DONE]."""
    count = body["max_tokens"]
    pieces: list[bytes | float | None] = [head(extra="x-replica-id: r1\r\n")]
    for i in range(count):
        pieces += [token(finish="length" if i == count - 1 else None), pause_s]
    return [*pieces, usage(len(body["prompt"]), count, maxqps={"steps": count, "late_steps": 0}), END]


class MockServer:
    """Serves a script on a free loopback port; keeps every request's head and body."""

    def __init__(
        self,
        script: Script = answer,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self.script = script
        self._host, self._tls, self.port = host, tls, port
        self.requests: list[tuple[bytes, dict[str, Any]]] = []
        self.connections = 0

    async def __aenter__(self) -> "MockServer":
        self._server = await asyncio.start_server(self._serve, self._host, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        scheme = "https" if self._tls else "http"
        self.url = f"{scheme}://{self._host}:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await reader.readuntil(b"\r\n\r\n")
        if request.startswith(b"GET "):
            result = request.startswith(b"GET /v1/models ")
            text = b'{"object":"list","data":[{"id":"m"}]}' if result else b""
            writer.write(sized(text, "200 OK" if result else "404 Not Found"))
            return True
        length = next(line for line in request.split(b"\r\n") if line.lower().startswith(b"content-length"))
        body = json.loads(await reader.readexactly(int(length.split(b":")[1])))
        self.requests.append((request, body))
        for piece in self.script(body):
            if piece is None:
                return False
            if isinstance(piece, bytes):
                writer.write(piece)
                await writer.drain()
            else:
                await asyncio.sleep(piece)
        return True


@contextmanager
def serving(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[MockServer]:
    """A mock server in a thread of its own."""
    ready, box = threading.Event(), {}

    async def serve() -> None:
        async with MockServer(script, tls=tls) as server:
            box["server"], box["stop"], box["loop"] = server, asyncio.Event(), asyncio.get_running_loop()
            ready.set()
            await box["stop"].wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield box["server"]
    finally:
        box["loop"].call_soon_threadsafe(box["stop"].set)
        thread.join(PATIENCE_S)
