"""serve_apps/simulated/openai_answers.py: vLLM's bodies, refusals, events and metrics, as bytes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from loadgen.run.samplers import page_figures
from serve_apps.simulated import openai_answers, openai_request
from serve_apps.simulated.openai_answers import (
    ApiError,
    ApiRequest,
    EngineSteps,
    OpenAiAnswer,
    ServedModel,
)

SERVED = ServedModel("org/model", max_model_len=100, vocab=1000, created_s=7)


def completion(**fields: Any) -> ApiRequest:
    return openai_request.parse_completion(json.dumps({"model": SERVED.name} | fields).encode(), SERVED)


def chat(**fields: Any) -> ApiRequest:
    return openai_request.parse_chat(json.dumps({"model": SERVED.name} | fields).encode(), SERVED)


def events(stream: bytes) -> list[Any]:
    """The JSON values of an SSE stream; [DONE] as itself."""
    assert stream.endswith(b"\n\n")
    lines = stream.decode().removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    data = [line.removeprefix("data: ") for line in lines]
    return [word if word == "[DONE]" else json.loads(word) for word in data]


DATA = Path(__file__).parents[2] / "data"
COUNTED = yaml.safe_load((DATA / "counted_requests.yaml").read_text())


@pytest.mark.parametrize(("fields", "input_tokens", "output_tokens"), COUNTED)
def test_words_ids_and_roles_are_counted(
    fields: dict[str, Any], input_tokens: int, output_tokens: int
) -> None:
    is_chat = "messages" in fields
    request = chat(**fields) if is_chat else completion(**fields)
    assert request == ApiRequest(is_chat, input_tokens, output_tokens, stream=False)


@pytest.mark.parametrize(
    ("options", "usage", "in_each"),
    [
        (None, False, False),
        ({"include_usage": True}, True, False),
        ({"include_usage": False, "continuous_usage_stats": True}, False, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
    ],
)
def test_stream_options(options: dict[str, bool] | None, usage: bool, in_each: bool) -> None:
    request = completion(prompt=[1], stream=True, stream_options=options)
    assert (request.stream, request.include_usage, request.usage_in_each) == (True, usage, in_each)


def test_a_model_that_utf8_cannot_encode_is_refused_like_any_other() -> None:
    with pytest.raises(ApiError) as caught:
        openai_request.parse_completion(rb'{"model": "\ud800", "prompt": [1]}', SERVED)
    assert caught.value.status == 404
    assert json.loads(caught.value.body)["error"]["message"] == "The model `?` does not exist."


REFUSALS = yaml.safe_load((DATA / "refused_completions.yaml").read_text())


@pytest.mark.parametrize(("fields", "status", "kind", "param", "message"), REFUSALS)
def test_a_bad_completion_is_refused_as_vllm_does(
    fields: dict[str, Any] | str, status: int, kind: str, param: str | None, message: str
) -> None:
    body = (fields if isinstance(fields, str) else json.dumps({"model": SERVED.name} | fields)).encode()
    with pytest.raises(ApiError) as refused:
        openai_request.parse_completion(body, SERVED)
    error = json.loads(refused.value.body)["error"]
    assert refused.value.status == status == error["code"]
    assert (error["type"], error["param"]) == (kind, param)
    assert message in error["message"]


@pytest.mark.parametrize(
    "messages", [None, [], "hello", ["hello"], [{"content": "a"}], [{"role": "user", "content": 1}]]
)
def test_a_bad_chat_is_refused(messages: Any) -> None:
    with pytest.raises(ApiError) as refused:
        chat(messages=messages)
    assert json.loads(refused.value.body)["error"]["param"] == "messages"


@pytest.mark.parametrize("name", ["logprobs", "top_logprobs", "return_token_ids"])
def test_a_chat_does_not_show_its_tokens(name: str) -> None:
    with pytest.raises(ApiError, match=f"{name} is not available from the simulated engine"):
        chat(messages=[{"role": "user", "content": "a"}], **{name: 1})


def answer(**fields: Any) -> OpenAiAnswer:
    values = {"chat": False, "input_tokens": 3, "output_tokens": 4, "stream": True, "include_usage": True}
    return OpenAiAnswer(ApiRequest(**(values | fields)), "abc", 1234, SERVED)


def test_a_streamed_completion_looks_like_vllms() -> None:
    wire = answer()
    head = {"id": "cmpl-abc", "object": "text_completion", "created": 1234, "model": "org/model"}
    choice = {"index": 0, "text": " token", "logprobs": None, "finish_reason": None, "stop_reason": None}
    usage = {"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4}
    details = {"prompt_tokens_details": {"cached_tokens": 0}}
    steps = {"steps": 4, "late_steps": 1, "first_token_us": 70, "last_token_us": 90}
    assert events(wire.tokens(0, 4) + wire.end(EngineSteps(4, 1, 0, 70, 90))) == [
        *[head | {"choices": [choice]}] * 3,
        head | {"choices": [choice | {"finish_reason": "length"}]},
        head | {"choices": [], "usage": usage | details, "maxqps": steps},
        "[DONE]",
    ]
    assert wire.tokens(0, 1).startswith(b'data: {"id":"cmpl-abc","object":"text_completion","created":1234,')
    assert b'"finish_reason":null' in wire.tokens(0, 1), "clients look for this very spelling"


def test_a_streamed_chat_begins_with_its_role() -> None:
    wire = answer(chat=True, include_usage=False)
    got = events(wire.tokens(0, 1) + wire.tokens(1, 4) + wire.end(EngineSteps(4, 0)))
    assert got[-1] == "[DONE]"
    assert {chunk["object"] for chunk in got[:-1]} == {"chat.completion.chunk"}
    assert [chunk["choices"][0]["delta"] for chunk in got[:-1]] == [
        {"role": "assistant", "content": ""},
        *[{"content": " token"}] * 4,
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in got[:-1]] == [None] * 4 + ["length"]


@given(cuts=st.sets(st.integers(1, 19)), is_chat=st.booleans(), in_each=st.booleans(), usage=st.booleans())
def test_however_tokens_are_merged_the_stream_is_the_same(
    cuts: set[int], is_chat: bool, in_each: bool, usage: bool
) -> None:
    wire = answer(chat=is_chat, output_tokens=20, usage_in_each=in_each and usage, include_usage=usage)
    edges = [0, *sorted(cuts), 20]
    pieces = b"".join(wire.tokens(edge, count) for edge, count in zip(edges, edges[1:], strict=False))
    assert pieces == b"".join(wire.tokens(index, index + 1) for index in range(20))
    assert len(events(pieces)) == 20 + is_chat


@pytest.mark.parametrize("is_chat", [False, True])
def test_cached_tokens_and_the_time_in_the_queue_are_told_once_in_the_end(is_chat: bool) -> None:
    steps = EngineSteps(4, 0, cached_tokens=2, queue_s=0.25)
    wire = answer(chat=is_chat, usage_in_each=True)
    *before, closing, _ = events(wire.tokens(0, 4) + wire.end(steps))
    whole = json.loads(answer(chat=is_chat, stream=False).whole(steps))
    assert closing["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert whole["usage"] == closing["usage"]
    assert closing["metrics"] == whole["metrics"] == {"queue_time_ms": 250.0}
    assert not any("prompt_tokens_details" in event["usage"] or "metrics" in event for event in before)
    *_, silent, _ = events(wire.end(EngineSteps(4, 0)))
    assert "metrics" not in silent, "where it is not known"


@pytest.mark.parametrize("is_chat", [False, True])
def test_a_whole_answer_counts_the_same_when_it_is_sent_back(is_chat: bool) -> None:
    body = json.loads(answer(chat=is_chat, stream=False).whole(EngineSteps(4, 0)))
    choice = body["choices"][0]
    text = choice["message"]["content"] if is_chat else choice["text"]
    assert body["object"] == ("chat.completion" if is_chat else "text_completion")
    assert body["usage"]["completion_tokens"] == 4
    assert choice["finish_reason"] == "length"
    assert completion(prompt=text).input_tokens == 4


METRICS = {
    "running": 3,
    "waiting": 2,
    "kv_usage": 0.25,
    "preemptions": 1,
    "prompt_tokens": 100,
    "generation_tokens": 50,
    "finished": 9,
    "aborted": 4,
    "steps": 60,
    "late_steps": 5,
    "prefix_queries": 80,
    "prefix_hits": 32,
}


def test_metrics_are_prometheus_text_with_vllms_names_and_types() -> None:
    text = openai_answers.metrics_body(METRICS, replace(SERVED, name='org/"model"\\')).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {name: family.type for name, family in families.items()} == {
        "vllm:num_requests_running": "gauge",
        "vllm:num_requests_waiting": "gauge",
        "vllm:kv_cache_usage_perc": "gauge",
        "vllm:prefix_cache_queries": "counter",
        "vllm:prefix_cache_hits": "counter",
        "vllm:num_preemptions": "counter",
        "vllm:prompt_tokens": "counter",
        "vllm:generation_tokens": "counter",
        "vllm:request_success": "counter",
        "maxqps:engine_steps": "counter",
        "maxqps:engine_late_steps": "counter",
    }
    assert all(family.documentation for family in families.values())
    labels = {"engine": "0", "model_name": 'org/"model"\\'}
    (late,) = families["maxqps:engine_late_steps"].samples
    assert (late.name, late.labels, late.value) == ("maxqps:engine_late_steps_total", labels, 5.0)
    ended = {
        sample.labels.pop("finished_reason"): sample for sample in families["vllm:request_success"].samples
    }
    assert {reason: sample.value for reason, sample in ended.items()} == {
        "stop": 0, "length": 9, "abort": 4, "error": 0,
    }  # fmt: skip
    assert all(sample.labels == labels for sample in ended.values())


def test_the_scraper_reads_what_the_engine_tells() -> None:
    own = {name: METRICS[name] for name in METRICS if name not in ("aborted", "steps", "late_steps")}
    assert page_figures(openai_answers.metrics_body(METRICS, SERVED).decode()) == own | {"finished": 13}
