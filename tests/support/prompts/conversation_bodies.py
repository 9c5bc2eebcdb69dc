"""Bodies of conversations, and what they share."""

from loadgen.fleet.rows import Planned
from loadgen.prompts.bodies import Prompts

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


def shared_by_plan(one: Planned, other: Planned) -> int:
    """How many tokens two turns begin with alike, by the levels of their plan."""
    if one.character != other.character:
        return one.shared_tokens
    if one.session != other.session:
        return one.character_tokens
    persona = one.character_tokens + one.persona_tokens
    return min(one.input_tokens, other.input_tokens) if one.history_cut == other.history_cut else persona
