"""A server of real HTTP that answers the quality gate's questions as the simulated engine does, at once."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

from serve_apps.simulated.greedy_text import GreedyText


@dataclass
class AnsweringServer:
    """Answers with a share of `defect` wrong positions; every request has noise of its own.

    `fails` are the numbers of requests (from 0) that get status 500, `fields` changes every answer.
    """

    vocab: int
    defect: float = 0.0
    fails: frozenset[int] = frozenset()
    fields: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, number: int, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request, in the shape of vLLM's /v1/completions."""
        text = GreedyText(body["prompt"], self.vocab, f"request {number}", self.defect)
        text.write(body["max_tokens"])
        top = [{f"token_id:{token}": nats for token, nats in list(one.items())[:20]} for one in text.tops]
        choice = {
            "index": 0,
            "text": "",
            "prompt_token_ids": body["prompt"],
            "token_ids": text.tokens,
            "logprobs": {"top_logprobs": top},
        }
        return {"object": "text_completion", "choices": [choice | self.fields]}


@contextmanager
def answering(server: AnsweringServer) -> Iterator[AnsweringServer]:
    """The server on a free loopback port, until the block ends."""
    numbers = count()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number = next(numbers)
            server.asked.append(body)
            failed = number in server.fails
            answer = json.dumps({} if failed else server.answer(number, body)).encode()
            self.send_response(500 if failed else 200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
