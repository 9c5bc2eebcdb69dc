"""Servers of real HTTP on loopback in threads: by a function, or with answers for the quality gate."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

from serve_apps.simulated.revealed_answers import GreedyText

Reply = tuple[int, Mapping[str, str], bytes]
"""Status, headers (one of them may be another length than the body's), and body."""
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
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
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
    return status, {}, json.dumps(tree).encode()


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

    def answer(_: Mapping[str, str], content: bytes) -> Reply:
        number, body = next(numbers), json.loads(content)
        server.asked.append(body)
        return reply({}, 500) if number in server.fails else reply(server.answer(number, body))

    with serving(answer) as server.url:
        yield server
