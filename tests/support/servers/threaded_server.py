"""A server of real HTTP on loopback, in threads of its own, that answers by a function."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Mapping[str, str], bytes]
"""Status, headers besides the length, and body."""
Answer = Callable[[Mapping[str, str], bytes], Reply]
"""From a request's headers and body to the reply."""


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """The address of a server that answers every request so, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, content = answer(self.headers, body)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


def reply(tree: Any, status: int = 200) -> Reply:
    """A reply of JSON."""
    return status, {}, json.dumps(tree).encode()
