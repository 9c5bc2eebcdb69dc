"""A server that speaks raw bytes from a script per address, and counts what of it was taken."""

import contextlib
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

Script = Callable[[bytes], Iterable[bytes | float]]
"""From the request's head to what is written: bytes, or a pause in seconds. Then the connection is closed."""


class HostileServer:
    """Plays `scripts[name]` for requests below /DOOR/NAME/; `taken` counts bytes by (door, name)."""

    def __init__(self, scripts: dict[str, Script]) -> None:
        self._scripts = scripts
        self.taken: Counter[tuple[str, str]] = Counter()
        self.heads: list[bytes] = []
        self._ended = False
        self._open: set[socket.socket] = set()

    def __enter__(self) -> "HostileServer":
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._listening.close()
        for line in list(self._open):
            line.close()

    def address(self, door: str, name: str) -> str:
        """The base URL of one case at one door."""
        return f"{self.url}/{door}/{list(self._scripts).index(name)}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listening.accept()
                self._open.add(line)
                threading.Thread(target=self._play, args=(line,), daemon=True).start()

    def _play(self, line: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError), line:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
                self._answer(line, _request(line))
        finally:
            self._open.discard(line)

    def _answer(self, line: socket.socket, head: bytes) -> None:
        self.heads.append(head)
        match = re.match(rb"\w+ /(\w+)/(\d+)/", head)
        if match is None:
            return
        door, name = match[1].decode(), list(self._scripts)[int(match[2])]
        for piece in self._scripts[name](head):
            if self._ended:
                return
            if isinstance(piece, float):
                time.sleep(piece)
                continue
            rest = memoryview(piece)
            while rest:
                sent = line.send(rest)
                self.taken[door, name] += sent
                rest = rest[sent:]


def _request(line: socket.socket) -> bytes:
    """The head of a request, once its body has come too."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += (more := line.recv(2**16))
        if not more:
            raise OSError("no request")
    head, _, body = data.partition(b"\r\n\r\n")
    match = re.search(rb"(?i)content-length: (\d+)", head)
    missing = int(match[1]) - len(body) if match else 0
    while missing > 0:
        missing -= len(line.recv(missing)) or missing
    return head


def key_in(head: bytes) -> bytes:
    """The key that a request brought."""
    match = re.search(rb"(?i)\r\nauthorization: Bearer ([^\r]*)", head)
    return match[1] if match else b"none"


def endlessly(piece: bytes, pause_s: float = 0.0) -> Iterator[bytes | float]:
    """One piece again and again, until nobody takes it any more."""
    while True:
        yield piece
        if pause_s:
            yield pause_s
