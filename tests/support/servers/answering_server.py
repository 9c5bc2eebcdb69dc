"""A server of real HTTP that answers the quality gate's questions as the simulated engine does, at once."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from serve_apps.simulated.revealed_answers import GreedyText
from tests.support.servers.threaded_server import Reply, reply, serving


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
