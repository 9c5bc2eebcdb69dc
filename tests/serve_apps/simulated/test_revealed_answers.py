"""serve_apps/simulated/revealed_answers.py: vLLM's fields, and a stream tells what a whole answer tells."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.studies import gate_questions
from serve_apps.simulated import openai_request
from serve_apps.simulated.openai_answers import EngineSteps, OpenAiAnswer, ServedModel
from serve_apps.simulated.revealed_answers import RevealedAnswer
from tests.support.virtual.simulated_service import Call, Service, run

SERVED = ServedModel("org/model", max_model_len=100, vocab=1000, created_s=7)
STEPS = EngineSteps(12, 0)
LOGPROBS = ["text_offset", "token_logprobs", "tokens", "top_logprobs"]
"""Fields of vLLM's CompletionLogProbs (0.32.0), in its order, as of the next two."""
CHOICE = ["index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_logprobs"]
CHOICE += ["prompt_token_ids", "routed_experts"]
STREAM_CHOICE = ["index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"]


def answer(name: str = "abc", served: ServedModel = SERVED, **fields: Any) -> RevealedAnswer:
    asked = {"prompt": [5, 6, 7], "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 20}
    asked |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
    request = openai_request.parse_completion(json.dumps(asked | fields).encode(), served)
    return RevealedAnswer(request, name, 1234, served)


def chunks(stream: bytes) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in stream.decode().split("\n\n") if line]


def whole(**fields: Any) -> Any:
    return json.loads(answer(**fields).whole(STEPS))["choices"][0]


def test_a_whole_answer_has_vllms_fields() -> None:
    choice = whole()
    tokens = choice["token_ids"]
    shown = choice["logprobs"]
    assert list(choice) == CHOICE
    assert list(shown) == LOGPROBS
    assert choice["prompt_token_ids"] == [5, 6, 7]
    assert shown["tokens"] == [f"token_id:{token}" for token in tokens]
    assert [len(top) for top in shown["top_logprobs"]] == [20] * 12
    assert [top[name] for top, name in zip(shown["top_logprobs"], shown["tokens"], strict=True)] == shown[
        "token_logprobs"
    ]
    assert shown["text_offset"] == [len("".join(shown["tokens"][:place])) for place in range(12)]


def test_a_streamed_answer_has_vllms_fields() -> None:
    wire = answer(stream=True)
    events = chunks(wire.tokens(0, 12))
    choices = [event["choices"][0] for event in events]
    assert all(list(choice) == STREAM_CHOICE for choice in choices)
    assert all(list(choice["logprobs"]) == LOGPROBS for choice in choices)
    assert [choice["prompt_token_ids"] for choice in choices] == [[5, 6, 7]] + [None] * 11
    assert [choice["finish_reason"] for choice in choices] == [None] * 11 + ["length"]


@given(cuts=st.sets(st.integers(1, 11)), in_each=st.booleans(), number=st.integers(0, 20))
@settings(deadline=None, max_examples=25)
def test_stream_and_whole_answer_agree(cuts: set[int], in_each: bool, number: int) -> None:
    options = {"include_usage": True, "continuous_usage_stats": in_each}
    wire = answer(stream=True, stream_options=options, logprobs=number)
    edges = [0, *sorted(cuts), 12]
    stream = b"".join(wire.tokens(edge, count) for edge, count in zip(edges, edges[1:], strict=False))
    choices = [event["choices"][0] for event in chunks(stream)]
    at_once = whole(logprobs=number)
    assert [token for choice in choices for token in choice["token_ids"]] == at_once["token_ids"]
    for name in LOGPROBS:
        streamed = [value for choice in choices for value in choice["logprobs"][name]]
        assert streamed == at_once["logprobs"][name]
    assert "".join(choice["text"] for choice in choices) == at_once["text"]


@pytest.mark.parametrize(("number", "shown"), [(0, 1), (1, 1), (5, 5), (20, 20)])
def test_as_many_alternatives_as_were_asked(number: int, shown: int) -> None:
    tops = whole(logprobs=number)["logprobs"]["top_logprobs"]
    assert [len(top) for top in tops] == [shown] * 12


def test_token_ids_alone_come_without_log_probabilities() -> None:
    choice = whole(logprobs=None)
    assert choice["logprobs"] is None
    assert choice["token_ids"] == whole()["token_ids"]
    assert whole(return_token_ids=None)["token_ids"] is None


def test_every_replica_answers_the_same_to_the_same_name() -> None:
    assert answer().whole(STEPS) == answer().whole(STEPS)
    ours, theirs = (whole(name=name)["logprobs"]["token_logprobs"] for name in ("a", "b"))
    assert ours != theirs
    assert ours == pytest.approx(theirs, abs=0.1)


def test_the_gate_reads_what_the_engine_answers() -> None:
    async def story() -> list[Call]:
        served = Service()
        body = gate_questions.request_body("org/model", [5, 6, 7], 30, "a")
        calls = [Call(served.app, "POST", "/v1/completions", body) for _ in range(2)]
        await asyncio.gather(*(call.done() for call in calls))
        return calls

    first, second = run(story())
    a, b = (gate_questions.parse(call.content, [5, 6, 7], 30)[0] for call in (first, second))
    shown = json.loads(first.content)["choices"][0]
    assert list(a.tokens) == shown["token_ids"]
    assert [len(top) for top in a.alternatives] == [20] * 30
    assert a.tokens[0] == b.tokens[0]
    assert a.alternatives[0] != b.alternatives[0], "the names of the requests differ, and so does the noise"


def test_a_request_that_asks_for_no_tokens_gets_the_usual_answer() -> None:
    plain = openai_request.parse_completion(b'{"prompt": [5], "return_tokens_as_token_ids": true}', SERVED)
    assert plain.reveal is None
    said = json.loads(OpenAiAnswer(plain, "abc", 1234, SERVED).whole(STEPS))
    assert "token_ids" not in said["choices"][0]
