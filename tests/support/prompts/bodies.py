"""Bodies of prompts and conversations, and what they share."""

import json
from typing import Any

from conf import Experiment
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.schedule import ArrivalSchedule, Planned, planned
from tests.support import commands

WORDS = commands.WORDS["small_chats"]
"""Chats whose histories are cut after a dozen turns."""


def shared_by_plan(planned: Planned, other: Planned) -> int:
    """How many tokens two turns begin with alike, by the levels of their plan."""
    if planned.character != other.character:
        return planned.shared_tokens
    if planned.session != other.session:
        return planned.character_tokens
    persona = planned.character_tokens + planned.persona_tokens
    return (
        min(planned.input_tokens, other.input_tokens) if planned.history_cut == other.history_cut else persona
    )


def bodies(experiment: Experiment, schedule: ArrivalSchedule) -> list[list[int]]:
    """The token ids of every prompt as they are sent."""
    made = Prompts(experiment.workload, "m", 151936, salt=3)
    sent = [
        made.turn(plan)
        if plan.character >= 0
        else made.body(plan.seq, plan.input_tokens, plan.output_tokens, plan.shared_tokens, plan.session)
        for plan in planned(schedule)
    ]
    return [json.loads(body)["prompt"] for body in sent]


def tokens(body: bytes) -> Any:
    """The prompt of a body token by token: ids, or the words of its text."""
    tree = json.loads(body)
    prompt = tree["messages"][0]["content"] if "messages" in tree else tree["prompt"]
    return prompt if isinstance(prompt, list) else prompt.split()
