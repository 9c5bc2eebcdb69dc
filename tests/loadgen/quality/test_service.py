"""loadgen/quality/asking.py: the requests that a service gets, and how its refusals are told."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from conf.io.http_get import DEFAULT_ACCESS
from loadgen.quality.asking import AskedPrompt, AskedService
from tests.support.quality.gate_answers import PROMPT, good
from tests.support.servers.threaded_server import Reply, serving

TOO_MANY = (
    "Requested sample logprobs of 20, which is greater than max allowed: 5 (parameter=logprobs, value=20)"
)
QUESTIONS = [AskedPrompt(number, repeat, PROMPT) for number in (0, 1) for repeat in (0, 0, 1)]


class Endpoint:
    """Answers every question with `status` and `body`, and remembers what it was asked."""

    def __init__(self) -> None:
        self.status, self.body = 200, json.dumps(good()).encode()
        self.asked: list[dict[str, Any]] = []
        self.url = ""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    known = Endpoint()

    def answer(_: Mapping[str, str], content: bytes) -> Reply:
        known.asked.append(json.loads(content))
        return known.status, {}, known.body

    with serving(answer) as known.url:
        yield known


def service(endpoint: Endpoint) -> AskedService:
    return AskedService([endpoint.url], DEFAULT_ACCESS, "m", 3, 10.0)


def test_every_request_has_a_salt_of_its_own(endpoint: Endpoint) -> None:
    """Also the same question, as it tries an endpoint out, and with another service at the same endpoint."""
    for side in (service(endpoint), service(endpoint)):
        for question in QUESTIONS:
            assert side.ask(question).error is None
    salts = {one.pop("cache_salt") for one in endpoint.asked}
    assert len(salts) == len(endpoint.asked) == 2 * len(QUESTIONS)
    assert all(one == endpoint.asked[0] for one in endpoint.asked), "all else is the same for both sides"


def test_an_answer_to_a_prompt_that_was_cut_is_none(endpoint: Endpoint) -> None:
    tree = good()
    tree["choices"][0]["prompt_token_ids"] = [2]
    endpoint.body = json.dumps(tree).encode()
    told = service(endpoint).ask(QUESTIONS[0])
    assert told.answer is None
    assert "another prompt than it was sent, 1 tokens for 2" in str(told.error)


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (
            400,
            json.dumps({"error": {"message": TOO_MANY}}),
            "max allowed: 5 .*start vLLM with --max-logprobs 20",
        ),
        (400, "no", "no JSON object; the gate needs vLLM's"),
        (400, json.dumps(good()), "HTTP 400"),
        (503, json.dumps({"error": {"message": "busy"}}), "HTTP 503 .*busy"),
    ],
)
def test_a_refusal_is_one_line(status: int, body: str, message: str, endpoint: Endpoint) -> None:
    endpoint.status, endpoint.body = status, body.encode()
    told = service(endpoint).ask(QUESTIONS[0])
    assert told.answer is None and told.error is not None
    assert told.error.isprintable()
    assert re.search(message, told.error)
