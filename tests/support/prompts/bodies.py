"""Bodies of prompts and conversations, and what they share."""

import json
from typing import Any

from conf import Experiment
from loadgen.fleet.rows import Planned
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.schedule import ArrivalSchedule

WORDS = [
    "workload=character",
    "workload.conversations.characters=5",
    "workload.conversations.turns=12",
    "workload.conversations.max_prompt_tokens=1024",
    "workload.conversations.system_tokens=100",
    "workload.conversations.character_tokens.mean=150",
    "workload.conversations.persona_tokens.mean=30",
    "workload.conversations.answer_tokens.mean=40",
    "workload.conversations.truncation_step_tokens=500",
]
"""Small chats, whose histories are cut after a dozen turns."""


def body(prompts: Prompts, plan: Planned) -> bytes:
    levels = plan.shared_tokens, plan.character_tokens, plan.persona_tokens
    names = plan.character, plan.session, plan.history_cut
    return prompts.turn(plan.input_tokens, plan.output_tokens, levels, names)


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
    columns = [schedule.seq, schedule.input_tokens, schedule.output_tokens, schedule.shared_tokens]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    if schedule.character is None:
        assert schedule.session is not None
        sent = [made.body(*row, int(schedule.session[i])) for i, row in enumerate(rows)]
    else:
        sent = [_turn(made, schedule, i) for i in range(len(schedule))]
    return [json.loads(body)["prompt"] for body in sent]


def _turn(made: Prompts, plan: Any, i: int) -> bytes:
    levels = plan.shared_tokens[i], plan.character_tokens[i], plan.persona_tokens[i]
    names = plan.character[i], plan.session[i], plan.history_cut[i]
    lengths = int(plan.input_tokens[i]), int(plan.output_tokens[i])
    return made.turn(*lengths, tuple(map(int, levels)), tuple(map(int, names)))  # type: ignore[arg-type]
