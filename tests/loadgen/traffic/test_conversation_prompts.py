"""loadgen/prompts/bodies.py: prompts of conversations share what the plan says, token by token."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf import load
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.schedule import Planned, planned
from tests.support.prompts.bodies import WORDS, shared_by_plan
from tests.support.prompts.chats import common
from tests.support.prompts.schedules import drawn

SMALL = load(WORDS).workload
KINDS = ("token_ids", "text", "chat")


@cache
def prompts_of(kind: str, salt: int = 3) -> Prompts:
    return Prompts(load([*WORDS, f"workload.prompt={kind}"]).workload, "m", 151936, salt)


def tokens(prompts: Prompts, plan: Planned) -> Sequence[Any]:
    tree = json.loads(prompts.turn(plan))
    prompt = tree["messages"][0]["content"] if "messages" in tree else tree["prompt"]
    return prompt if isinstance(prompt, list) else prompt.split()


@pytest.mark.parametrize("kind", KINDS)
def test_two_turns_begin_alike_as_far_as_the_plan_says_and_no_further(kind: str) -> None:
    prompts, turns = prompts_of(kind), planned(drawn(SMALL, 3.0, 80))
    lists = [tokens(prompts, turn) for turn in turns]
    assert all(len(each) == turn.input_tokens for each, turn in zip(lists, turns, strict=True))
    assert len({turn.history_cut for turn in turns}) > 2
    names = set()
    for i in range(0, len(turns), 9):
        for j in range(i):
            level = shared_by_plan(turns[i], turns[j])
            assert common(lists[i], lists[j]) == level
            names.add((turns[i].character == turns[j].character, turns[i].session == turns[j].session))
    assert names == {(False, False), (True, False), (True, True)}


def test_another_run_says_nothing_alike() -> None:
    turn = planned(drawn(SMALL, 3.0, 200))[0]
    assert common(tokens(prompts_of("token_ids"), turn), tokens(prompts_of("token_ids", salt=4), turn)) == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**7), st.integers(0, 2**31 - 1), st.integers(0, 2**20), st.integers(17, 70_000))
def test_any_numbers_make_a_body_of_the_asked_length(
    character: int, session: int, cut: int, count: int
) -> None:
    turn = Planned(0, 0, "window", 0, count, 7, 4, session=session, character=character, history_cut=cut)
    turn.character_tokens, turn.persona_tokens = 9, 8
    tree = json.loads(prompts_of("token_ids").turn(turn))
    assert len(tree["prompt"]) == count and tree["max_tokens"] == tree["min_tokens"] == 7
    other = replace(turn, history_cut=cut + 1)
    assert common(tree["prompt"], tokens(prompts_of("token_ids"), other)) == 17
