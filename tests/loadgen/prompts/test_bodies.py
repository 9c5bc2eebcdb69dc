"""loadgen/prompts/bodies.py: exact lengths, beginnings shared or unique, ids inside the vocabulary."""

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf import load
from conf.specs.experiment import Workload
from loadgen.prompts.bodies import UNIQUE_TOKENS, Prompts

IDS = load().workload
TEXT = load(["workload.prompt=text"]).workload
CHAT = load(["workload=chat_5600_140_api"]).workload


@cache
def prompts_of(kind: str, vocab: int = 151936) -> Prompts:
    return Prompts(load([f"workload.prompt={kind}"]).workload, "m", vocab, salt=3)


def body(prompts: Prompts, seq: int, inputs: int, outputs: int = 140, shared: int = 0) -> dict[str, Any]:
    tree = json.loads(prompts.body(seq, inputs, outputs, shared))
    assert isinstance(tree, dict)
    return tree


def tokens(tree: dict[str, Any]) -> list[int] | list[str]:
    """The prompt of a body, token by token."""
    prompt = tree["messages"][0]["content"] if "messages" in tree else tree["prompt"]
    return prompt if isinstance(prompt, list) else prompt.split()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**40 - 1), st.integers(1, 9000), st.sampled_from([1024, 32000, 128256, 151936]))
def test_a_body_has_exactly_the_asked_tokens(seq: int, inputs: int, vocab: int) -> None:
    tree = body(prompts_of("token_ids", vocab), seq, inputs)
    assert len(tree["prompt"]) == inputs
    assert all(0 <= token < vocab for token in tree["prompt"])
    assert (tree["max_tokens"], tree["min_tokens"], tree["ignore_eos"]) == (140, 140, True)
    assert tree["stream"] and tree["stream_options"] == {"include_usage": True} and tree["model"] == "m"


def test_a_chat_is_one_message_with_the_words_of_the_text() -> None:
    chat, text = Prompts(CHAT, "m", 151936, salt=3), Prompts(TEXT, "m", 151936, salt=3)
    asked, plain = body(chat, 5, 321), body(text, 5, 321)
    assert asked.pop("messages") == [{"role": "user", "content": plain.pop("prompt")}]
    assert asked == plain


def test_the_path_belongs_to_the_bodies() -> None:
    paths = [Prompts(workload, "m", 151936, salt=3).path for workload in (IDS, TEXT, CHAT)]
    assert paths == ["/v1/completions", "/v1/completions", "/v1/chat/completions"]


@pytest.mark.parametrize("workload", [IDS, TEXT, CHAT], ids=["ids", "text", "chat"])
def test_no_two_prompts_share_their_first_tokens(workload: Workload) -> None:
    beginnings = set()
    for salt in (1, 2):
        prompts = Prompts(workload, "m", 151936, salt)
        for seq in range(300):
            tree = body(prompts, seq, 64)
            beginnings.add(tuple(tokens(tree)[:UNIQUE_TOKENS]))
    assert len(beginnings) == 600


@pytest.mark.parametrize("kind", ["token_ids", "text", "chat"])
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_prompts_share_the_asked_beginning_and_nothing_after_it(kind: str, data: st.DataObject) -> None:
    prompts = prompts_of(kind)
    lengths = [data.draw(st.integers(40, 9000)) for _ in range(2)]
    shared = [data.draw(st.integers(0, length - UNIQUE_TOKENS)) for length in lengths]
    first, second = (
        tokens(body(prompts, seq, *of)) for seq, of in enumerate(zip(lengths, [1, 1], shared, strict=True))
    )
    assert (len(first), len(second)) == tuple(lengths)
    common = next(i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1])
    assert common == min(shared)


def test_a_prompt_may_be_all_shared() -> None:
    prompts = prompts_of("token_ids")
    assert body(prompts, 1, 50, shared=50) == body(prompts, 2, 50, shared=50)


def test_a_shared_beginning_is_as_long_as_asked_beyond_the_pool() -> None:
    prompts = prompts_of("token_ids")
    long, short = (tokens(body(prompts, 1, inputs, shared=inputs - 10)) for inputs in (200_010, 1010))
    assert len(long) == 200_010
    assert long[:1000] == short[:1000]


def test_another_salt_shares_another_beginning() -> None:
    first, second = (tokens(body(Prompts(IDS, "m", 151936, salt), 1, 99, shared=90)) for salt in (1, 2))
    assert first[:90] != second[:90]


def test_salt_and_seq_decide_the_body() -> None:
    assert Prompts(IDS, "m", 151936, 1).body(7, 100, 5) == Prompts(IDS, "m", 151936, 1).body(7, 100, 5)
    assert Prompts(IDS, "m", 151936, 1).body(7, 100, 5) != Prompts(IDS, "m", 151936, 2).body(7, 100, 5)
