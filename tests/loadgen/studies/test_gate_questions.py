"""loadgen/studies/gate_questions.py: what the gate asks and when, and that no answer gets past the bounds."""

import copy
import json
import math
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.quality.answer_file import Answer
from conf import load
from conf.io.http_get import DEFAULT_ACCESS
from loadgen.cli import two_sides
from loadgen.studies import gate_questions
from loadgen.studies.gate_questions import (
    AskedPrompt,
    AskedService,
    Pace,
    UnusableAnswer,
    asking,
    most_bytes,
    parse,
    request_body,
)
from tests.support.machine.patience import until
from tests.support.quality.answers import PROMPT, good, position
from tests.support.servers.threaded_server import Reply, serving


def changed(path: str, value: Any) -> bytes:
    """The good answer with another value in one place; "GONE" takes the place out."""
    tree: Any = good()
    *above, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    at = tree
    for part in above:
        at = at[part]
    if value == "GONE":
        del at[last]
    else:
        at[last] = value
    return json.dumps(tree).encode()


def test_a_question_asks_for_what_is_compared() -> None:
    assert json.loads(request_body("org/model", (5, 6), 32, "a-1")) == {
        "model": "org/model",
        "prompt": [5, 6],
        "max_tokens": 32,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 20,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "cache_salt": "a-1",
    }


def test_a_good_answer_is_read() -> None:
    result, _ = parse(json.dumps(good()).encode(), PROMPT, 3)
    assert result.tokens == (7, 40, 7)
    assert result.alternatives[1][40] == -1.0
    assert [len(alternative) for alternative in result.alternatives] == [20] * 3


def test_its_token_may_be_one_more_and_a_rounded_zero_is_none() -> None:
    tree = good((7,))
    tree["choices"][0]["token_ids"] = [900]
    others = dict.fromkeys(position(7), -9) | {"token_id:7": 1e-7}
    tree["choices"][0]["logprobs"]["top_logprobs"] = [{"token_id:900": -20.5} | others]
    (result,) = parse(json.dumps(tree).encode(), PROMPT, 1)[0].alternatives
    assert len(result) == 21
    assert result[7] == 0.0


TOP = "choices/0/logprobs/top_logprobs"
FEW = dict(list(position(7).items())[:19])
MANY = {f"token_id:{place}": -9.0 for place in range(22)}
ANSWERS = yaml.safe_load((Path(__file__).parents[2] / "data" / "unusable_answers.yaml").read_text())
UNUSABLE = [
    *[(answer.encode(), message) for answer, message in ANSWERS["whole"]],
    *[(changed(where, value), message) for where, value, message in ANSWERS["changed"]],
    (b"\xff", "no JSON object"),
    (b"[" * 100_000, "no JSON object"),
    (b'{"a": ' + b"1" * 10_000 + b"}", "no JSON object"),
    (changed("choices", good()["choices"] * 2), "not one choice"),
    (changed(f"{TOP}/0", FEW), "19 alternatives of a token instead of 20; start it with --max-logprobs 20"),
    (changed(f"{TOP}/0", MANY), "22 alternatives of a token instead of 20"),
    (changed(f"{TOP}/0/token_id:7", -(10**400)), "must be finite and not above 0"),
    (changed(f"{TOP}/0", dict.fromkeys(position(7), -0.1)), "add up to more than 1"),
    (changed(f"{TOP}/0", position(8)), "not among its own alternatives"),
    (changed(f"{TOP}/0", {f"{place}": -9.0 for place in range(20)}), "must know return_tokens_as_token_ids"),
    (changed(f"{TOP}/0", position(2**31)), "must know return_tokens_as_token_ids"),
]


@pytest.mark.parametrize(("answer", "message"), UNUSABLE)
def test_an_unusable_answer_is_named_in_one_line(answer: bytes, message: str) -> None:
    with pytest.raises(UnusableAnswer, match=message) as refused:
        parse(answer, PROMPT, 3)
    assert str(refused.value).isprintable()


def test_what_a_server_says_is_shown_on_one_short_line() -> None:
    said = "this is\x1b[31m wrong\n" * 1000
    answer = json.dumps({"error": {"message": said}}).encode()
    with pytest.raises(UnusableAnswer) as refused:
        parse(answer, PROMPT, 3)
    text = str(refused.value)
    assert text.isprintable()
    assert len(text) < 400


def test_an_answer_that_is_worth_reading_is_not_cut_off() -> None:
    tree = good(tuple(range(2_000_000_000, 2_000_000_032)))
    shown = tree["choices"][0]["logprobs"]
    shown["top_logprobs"] = [dict.fromkeys(top, -12.345678901234567) for top in shown["top_logprobs"]]
    tree["choices"][0]["prompt_token_ids"] = [2_000_000_000] * 5000
    assert len(json.dumps(tree, indent=1)) < most_bytes(5000, 32)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every container and key below a tree."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    return [place for key in keys for place in ((tree, key), *places(tree[key]))]


def read(answer: bytes, output_tokens: int) -> Answer | None:
    """What was read, with every promise kept; None for an answer that was refused in one line."""
    try:
        result, _ = parse(answer, PROMPT, output_tokens)
    except UnusableAnswer as error:
        assert str(error).isprintable() and str(error)
        return None
    assert len(result.tokens) == len(result.alternatives) == output_tokens
    for token, top in zip(result.tokens, result.alternatives, strict=True):
        assert type(token) is int and token in top
        assert 20 <= len(top) <= 21
        assert all(type(one) is int and type(value) is float for one, value in top.items())
        assert all(-9999 < value <= 0 for value in top.values())
        assert sum(map(math.exp, top.values())) <= 1.02
    return result


@given(data=st.data(), times=st.integers(1, 3))
@settings(deadline=None)
def test_whatever_stands_in_any_place_is_read_well_or_refused(data: st.DataObject, times: int) -> None:
    tree = copy.deepcopy(good())
    for _ in range(times):
        where, key = data.draw(st.sampled_from(places(tree)))
        if data.draw(st.booleans()):
            del where[key]
        else:
            where[key] = data.draw(JSON)
    read(json.dumps(tree).encode(), 3)


@given(cut=st.integers(0, 4000), junk=st.binary(max_size=8), output_tokens=st.integers(1, 4))
@settings(deadline=None)
def test_an_answer_cut_off_or_garbled_is_refused(cut: int, junk: bytes, output_tokens: int) -> None:
    answer = json.dumps(good()).encode()
    at = cut % len(answer)
    read(answer[:at] + junk + answer[at + len(junk) :], output_tokens)
    assert read(answer[:at], 3) is None
    assert (read(answer, output_tokens) is None) == (output_tokens != 3)


AT_ONCE = 3
FAST = Pace(load_qps=0.0, per_s=None, in_flight=AT_ONCE)


def test_every_question_is_answered_once_and_never_more_are_in_flight_than_allowed() -> None:
    now, most, lock = 0, 0, threading.Lock()
    answers: list[int] = []

    def ask(question: int) -> int:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        time.sleep(0.001)
        with lock:
            now -= 1
        return 10 * question

    def answered(answer: int) -> bool:
        answers.append(answer)
        return False

    with asking(range(40), FAST, ask, answered) as is_over:
        until(is_over)
    assert sorted(answers) == [10 * number for number in range(40)]
    assert most <= AT_ONCE


def test_nothing_more_is_asked_once_enough_is_known() -> None:
    questions: list[int] = []

    def ask(question: int) -> int:
        questions.append(question)
        return question

    with asking(range(10_000), FAST, ask, lambda answer: answer >= 5) as is_over:
        until(is_over)
    assert 5 in questions
    assert len(questions) <= 6 + AT_ONCE


def test_questions_come_at_their_pace_and_leaving_the_block_ends_them() -> None:
    questions: list[int] = []
    slow = Pace(load_qps=1.0, per_s=0.01, in_flight=AT_ONCE)
    with asking(
        range(10), slow, lambda question: questions.append(question) or 0, lambda _: False
    ) as is_over:
        assert not is_over()
    assert len(questions) <= 1


def test_an_error_of_ours_ends_the_asking_and_is_raised() -> None:
    def ask(question: int) -> int:
        raise ZeroDivisionError(str(question))

    with (
        pytest.raises(ZeroDivisionError),
        asking(range(10), FAST, ask, lambda _: False) as is_over,
    ):
        until(is_over)


FAKE = load(["cluster.session=fake", "quality.load=2", "quality.answer_tokens=32"])


@given(st.floats(0.01, 500), st.integers(1, 4), st.integers(1, 2000))
def test_questions_and_load_are_the_tokens_of_the_rate(rate_qps: float, nodes: int, tokens: int) -> None:
    experiment = replace(
        FAKE,
        cluster=replace(FAKE.cluster, nodes=nodes),
        quality=replace(FAKE.quality, load=str(rate_qps), prompt_tokens=tokens),
    )
    pace = gate_questions.gate_pace(experiment)
    assert pace.per_s is not None and 0 < pace.per_s <= gate_questions.MOST_PER_S
    request = experiment.workload.input_tokens.mean + experiment.workload.output_tokens.mean
    offered = nodes * pace.load_qps * request + pace.per_s * (tokens + 32)
    assert offered == pytest.approx(nodes * experiment.quality.rate_qps * request)
    assert pace.load_qps >= (1 - gate_questions.QUESTION_SHARE) * experiment.quality.rate_qps * (1 - 1e-9)


def test_an_idle_service_has_a_few_questions_in_flight_and_no_other_load() -> None:
    experiment = load(["quality.load=idle"])
    assert gate_questions.gate_pace(experiment) == Pace(0.0, None, gate_questions.IDLE_IN_FLIGHT)


def test_the_longest_time_is_that_of_three_answers_to_every_prompt() -> None:
    experiment = load(["quality.load=2", "quality.prompts=600"])
    pace = gate_questions.gate_pace(experiment)
    assert pace.per_s
    assert f": at most {1800 / pace.per_s:.0f} s, " in two_sides.gate_plan(experiment, experiment)[-1]


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
    asking = replace(FAKE, quality=replace(FAKE.quality, answer_tokens=3))
    return AskedService(asking, [endpoint.url], DEFAULT_ACCESS)


def test_every_request_has_a_salt_of_its_own(endpoint: Endpoint) -> None:
    """Also the same question, as it tries an endpoint out, and with another service at the same endpoint."""
    for side in (service(endpoint), service(endpoint)):
        for question in QUESTIONS:
            assert side.ask(question).error is None
    salts = {one.pop("cache_salt") for one in endpoint.asked}
    assert len(salts) == len(endpoint.asked) == 2 * len(QUESTIONS)
    assert all(one == endpoint.asked[0] for one in endpoint.asked), "all else is the same for both sides"


@pytest.mark.parametrize(
    ("status", "body", "message"), [*ANSWERS["refused"], (400, json.dumps(good()), "HTTP 400")]
)
def test_a_refusal_is_one_line(status: int, body: str, message: str, endpoint: Endpoint) -> None:
    endpoint.status, endpoint.body = status, body.encode()
    told = service(endpoint).ask(QUESTIONS[0])
    assert told.answer is None and told.error is not None
    assert told.error.isprintable()
    assert re.search(message, told.error)
