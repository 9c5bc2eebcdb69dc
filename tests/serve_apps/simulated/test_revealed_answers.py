"""serve_apps/simulated/revealed_answers.py: vLLM's fields, and a text like a model's, with its defects."""

import asyncio
import json
import math
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.studies import gate_questions
from serve_apps.simulated import openai_request
from serve_apps.simulated.openai_answers import EngineSteps, OpenAiAnswer, ServedModel
from serve_apps.simulated.revealed_answers import CANDIDATES, GreedyText, RevealedAnswer, token_ids
from tests.support.virtual.simulated_service import Call, Service

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
    """The choices of a stream's events."""
    lines = stream.decode().removesuffix("\n\n").split("\n\n")
    return [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]


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
    choices = chunks(answer(stream=True).tokens(0, 12))
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
    choices = chunks(stream)
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


async def test_the_gate_reads_what_the_engine_answers() -> None:
    served, body = Service(), gate_questions.request_body("org/model", [5, 6, 7], 30, "a")
    calls = (Call(served.app, "POST", "/v1/completions", body).done() for _ in range(2))
    first, second = await asyncio.gather(*calls)
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


# The text that is answered.

VOCAB = 151_936


def written(prompt: list[int], count: int, salt: str = "a", defect: float = 0.0) -> GreedyText:
    text = GreedyText(prompt, VOCAB, salt, defect)
    text.write(count)
    return text


def divergence(p: dict[int, float], q: dict[int, float]) -> float:
    """Jensen and Shannon's, in nats, over the tokens that both know and the rest."""
    both = sorted(p.keys() & q.keys())
    known = [[math.exp(one[token]) for token in both] for one in (p, q)]
    a, b = ([*masses, max(0.0, 1 - sum(masses))] for masses in known)
    return sum(0.5 * x * math.log(2 * x / (x + y)) for one, two in ((a, b), (b, a))
               for x, y in zip(one, two, strict=True) if x > 0)  # fmt: skip


@pytest.mark.slow
def test_other_processes_write_the_same_text() -> None:
    program = (
        "import json; from serve_apps.simulated.revealed_answers import GreedyText, token_ids\n"
        "text = GreedyText(token_ids(['two', 'words'], 1000), 1000, 'salt', .1); text.write(40)\n"
        "print(json.dumps([text.tokens, [list(top.items()) for top in text.tops]]))"
    )
    output = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    here = GreedyText(token_ids(["two", "words"], 1000), 1000, "salt", 0.1)
    here.write(40)
    tokens, tops = json.loads(output[0])
    assert output[0] == output[1]
    assert tokens == here.tokens
    for read, top in zip(tops, here.tops, strict=True):  # a mathematics library may round the last digit up
        assert [token for token, _ in read] == list(top)
        assert [value for _, value in read] == pytest.approx(list(top.values()), abs=2e-6)


@given(
    prompt=st.lists(st.integers(0, 2**40), min_size=1, max_size=20),
    vocab=st.integers(1, 10**6),
    salt=st.text(max_size=9),
    defect=st.floats(0, 1),
    cut=st.integers(0, 6),
)
@settings(max_examples=20)
def test_every_position_is_a_distribution(
    prompt: list[int], vocab: int, salt: str, defect: float, cut: int
) -> None:
    text, pieces = GreedyText(prompt, vocab, salt, defect), GreedyText(prompt, vocab, salt, defect)
    text.write(6)
    pieces.write(cut)
    pieces.write(6)
    assert (text.tokens, text.tops) == (pieces.tokens, pieces.tops), "however it is cut"
    for token, top in zip(text.tokens, text.tops, strict=True):
        logprobs = list(top.values())
        assert len(top) == min(CANDIDATES, vocab)
        assert all(0 <= candidate < vocab for candidate in top)
        assert next(iter(top)) == token
        assert logprobs == sorted(logprobs, reverse=True)
        assert sum(map(math.exp, logprobs)) <= 1 + 1e-4


def test_positions_are_certain_and_open_as_in_text() -> None:
    text = written([1, 2, 3], 2000)
    likeliest = [math.exp(top[token]) for token, top in zip(text.tokens, text.tops, strict=True)]
    rests = [1 - sum(map(math.exp, top.values())) for top in text.tops]
    assert 0.2 < sum(one < 0.5 for one in likeliest) / 2000 < 0.36
    assert 0.15 < sum(one > 0.95 for one in likeliest) / 2000 < 0.3
    assert max(rests) > 0.2
    assert len(set(text.tokens)) > 1900, "it does not turn in circles"


def test_a_prompt_and_what_was_answered_decide_what_follows() -> None:
    first, other = written([1, 2, 3], 5), written([3, 2, 1], 5)
    assert first.tokens != other.tokens
    assert first.tops[0].keys() != other.tops[0].keys()
    assert written([1, 2], 1).tokens != written([1], 1).tokens
    assert token_ids(["a", "b"], 1000) == token_ids(("a", "b"), 1000) != token_ids(["b", "a"], 1000)
    assert token_ids([5, 6], 1000) == [5, 6]


@pytest.mark.slow
def test_two_answers_of_one_prompt_differ_as_two_precisions_do() -> None:
    pairs = [(written([seed], 1), written([seed], 1, salt="b")) for seed in range(3000)]
    flips = sum(a.tokens != b.tokens for a, b in pairs)
    mean = sum(divergence(a.tops[0], b.tops[0]) for a, b in pairs) / len(pairs)
    assert 0 < flips <= 15, "some 5 of 3000"
    assert 3e-6 < mean < 1.2e-5, "a quarter of a KL divergence of 2.5e-5 nats"
    assert all(a.tops != b.tops for a, b in pairs)
    assert written([7], 30).tops == written([7], 30).tops


@pytest.mark.parametrize("share", [0.02, 0.3])
def test_a_defect_makes_its_share_of_positions_wrong(share: float) -> None:
    number = 2000
    result = [
        divergence(written([seed], 1).tops[0], written([seed], 1, "b", share).tops[0])
        for seed in range(number)
    ]
    wrong = sum(one > 0.05 for one in result)
    sd = math.sqrt(number * share * (1 - share))
    assert abs(wrong - number * share) < 4 * sd
    assert sum(one > 0.2 for one in result) > 0.9 * wrong, "and wrong by much"


def test_after_a_wrong_token_the_text_goes_elsewhere() -> None:
    right, wrong = written([4], 400), written([4], 400, defect=0.05)
    apart = next(i for i in range(400) if right.tokens[i] != wrong.tokens[i])
    assert right.tops[:apart] == wrong.tops[:apart]
    assert divergence(right.tops[apart], wrong.tops[apart]) > 0.05
    after = zip(right.tokens[apart:], wrong.tokens[apart:], strict=True)
    assert not any(one == other for one, other in after)
