"""Words that conversations would overrule, and the keys to set instead.

Knows words as trees of plain values, and no spec: a saved experiment holds both, because its conversations
give it the means of its lengths.
"""

from collections.abc import Mapping
from typing import Any

LENGTHS, SHARES = "give the requests their lengths", "have sessions and shared beginnings of their own"
RULES = {
    "input_tokens": (
        LENGTHS,
        "max_prompt_tokens, turns, system_tokens, character_tokens.mean, persona_tokens.mean or "
        "message_tokens.mean",
    ),
    "output_tokens": (LENGTHS, "answer_tokens.mean"),
    "prefix_hit": (SHARES, "system_tokens and character_tokens.mean"),
    "session_hit": (SHARES, "turns and truncation"),
    "sessions": (SHARES, "turns, the messages of a session"),
}


def overruled(word: Mapping[str, Any]) -> str:
    """One line, with the remedy, on a word (as a tree) that conversations overrule; empty if they do not."""
    for name, value in (word.get("workload") or {}).items():
        if name not in RULES:
            continue
        why, instead = RULES[name]
        unless = {"kind": "conversation"} if why == LENGTHS else 0
        if value != unless:
            return (
                f"workload.{name}: conversations {why}; leave it out, or set workload.conversations.{instead}"
            )
    return ""
