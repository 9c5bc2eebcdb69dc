"""loadgen/studies/gate_questions.py: order and number of questions, their pace beside a load."""

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf import load
from conf.io.http_get import DEFAULT_ACCESS
from loadgen.studies import gate_questions
from loadgen.studies.gate_questions import AskedPrompt, AskedService, Asking, Pace
from tests.support.quality.answers import PROMPT, good
from tests.support.servers.threaded_server import Reply, serving

AT_ONCE = 3
FAST = Pace(load_qps=0.0, per_s=None, in_flight=AT_ONCE)
PATIENCE_S = 20.0


def until_over(asking: Asking) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not asking.is_over():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_every_question_is_answered_once_and_never_more_are_in_flight_than_allowed() -> None:
    now, most, lock = 0, 0, threading.Lock()
    answers: dict[int, int] = {}

    def ask(question: int) -> int:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        time.sleep(0.001)
        with lock:
            now -= 1
        return 10 * question

    def answered(question: int, answer: int) -> bool:
        assert question not in answers
        answers[question] = answer
        return False

    with Asking(range(40), FAST, ask, answered) as asking:
        until_over(asking)
    assert answers == {number: 10 * number for number in range(40)}
    assert most <= AT_ONCE


def test_nothing_more_is_asked_once_enough_is_known() -> None:
    asked: list[int] = []

    def ask(question: int) -> int:
        asked.append(question)
        return question

    with Asking(range(10_000), FAST, ask, lambda _, answer: answer >= 5) as asking:
        until_over(asking)
    assert 5 in asked
    assert len(asked) <= 6 + AT_ONCE


def test_questions_come_at_their_pace_and_leaving_the_block_ends_them() -> None:
    asked: list[int] = []
    slow = Pace(load_qps=1.0, per_s=0.01, in_flight=AT_ONCE)
    with Asking(range(10), slow, lambda question: asked.append(question) or 0, lambda *_: False) as asking:
        assert not asking.is_over()
    assert len(asked) <= 1


def test_an_error_of_ours_ends_the_asking_and_is_raised() -> None:
    def ask(question: int) -> int:
        raise ZeroDivisionError(str(question))

    with (
        pytest.raises(ZeroDivisionError),
        Asking(range(10), FAST, ask, lambda *_: False) as asking,
    ):
        until_over(asking)


FAKE = load(["cluster.session=fake", "quality.load=2", "quality.answer_tokens=32"])


@given(st.floats(0.01, 500), st.integers(1, 4), st.integers(1, 2000))
def test_questions_and_load_together_are_the_tokens_of_the_rate(
    rate_qps: float, nodes: int, tokens: int
) -> None:
    asked = replace(
        FAKE,
        cluster=replace(FAKE.cluster, nodes=nodes),
        quality=replace(FAKE.quality, load=str(rate_qps), prompt_tokens=tokens),
    )
    found = gate_questions.gate_pace(asked)
    assert found.per_s is not None and 0 < found.per_s <= gate_questions.MOST_PER_S
    request = asked.workload.input_tokens.mean + asked.workload.output_tokens.mean
    offered = nodes * found.load_qps * request + found.per_s * (tokens + 32)
    assert offered == pytest.approx(nodes * asked.quality.rate_qps * request)
    assert found.load_qps >= (1 - gate_questions.QUESTION_SHARE) * asked.quality.rate_qps * (1 - 1e-9)


def test_an_idle_service_has_a_few_questions_in_flight_and_no_other_load() -> None:
    asked = load(["quality.load=idle"])
    assert gate_questions.gate_pace(asked) == gate_questions.Pace(0.0, None, gate_questions.IDLE_IN_FLIGHT)
    assert gate_questions.longest_s(asked, gate_questions.gate_pace(asked)) is None


def test_the_longest_time_is_that_of_three_answers_to_every_prompt() -> None:
    asked = load(["quality.load=2", "quality.prompts=600"])
    found = gate_questions.gate_pace(asked)
    assert found.per_s
    assert gate_questions.longest_s(asked, found) == pytest.approx(1800 / found.per_s)


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
