"""The spec of chats with memory: characters, sessions, turns, and the truncation of a growing history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from conf.io.check import require
from conf.specs.ranges import AtLeastOne, NotNegative, Positive, Range, Whole
from conf.specs.request_sizes import Lengths

NAMING_TOKENS = 8
"""Unique tokens at the beginning of a character, a persona and a truncated history."""
CHARACTER_SHARE, PERSONA_SHARE, MESSAGE_SHARE = 1 / 2, 1 / 8, 1 / 16
"""Largest shares of the prompt's limit for system prompt and character, for a persona and for a message.

Longer draws are cut off, so that every session has room for a history (our choice).
"""
PART_NAMES = ("system", "character", "persona", "history", "message")
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
"""Keys of a workload that conversations overrule: why, and what to set instead."""


@dataclass(frozen=True, slots=True)
class PromptPart:
    """One part of a prompt template: Jinja2 text, filled once, or for `each` item of a list of the data.

    If a prompt is too long, parts of priority 1 are truncated, the oldest first, then those of priority 2,
    and so on; parts of priority 0 never are.
    """

    name: str
    content: str
    role: Literal["system", "user", "assistant"] = "user"
    truncation_priority: Whole = 0
    each: str = ""

    def __post_init__(self) -> None:
        require(bool(self.name), "every part needs a name")


@dataclass(frozen=True, slots=True)
class Conversations:
    """Sessions of chat users, each with one of `characters`; token counts are lengths of a prompt's parts.

    Characters are drawn by a Zipf law: the k-th most liked in proportion to k ** -`zipf`. A session has a
    geometric number of turns of mean `turns`, at least one. A turn is due `answer_ttft_s` + `answer_tpot_s` x
    (tokens of the answer before) and a think time (lognormal, of mean and coefficient of variation) after the
    turn before: all planned, whatever the service does.

    A prompt is system, character, persona, history and message, at most `max_prompt_tokens` long. If the
    history does not fit, its oldest tokens are dropped: a multiple of `truncation_step_tokens`
    (`cache_aware`), or exactly the excess (`naive`).
    """

    system_tokens: Whole
    characters: Annotated[int, Range(ge=1, le=10**7)]
    zipf: NotNegative
    character_tokens: Lengths
    persona_tokens: Lengths
    turns: float
    message_tokens: Lengths
    answer_tokens: Lengths
    think_mean_s: Positive
    think_cv: NotNegative
    answer_ttft_s: Positive
    answer_tpot_s: Positive
    max_prompt_tokens: int
    truncation: Literal["cache_aware", "naive"] = "cache_aware"
    truncation_step_tokens: AtLeastOne = 4096
    template: list[PromptPart] = field(default_factory=list)

    def __post_init__(self) -> None:
        group = "workload.conversations."
        require(
            2 <= self.turns < 1e5,
            f"{group}turns={self.turns:g} must be a mean of at least 2 and below 100000; one turn has no "
            "memory: use workload.prefix_hit",
        )
        for name in ("character_tokens", "persona_tokens", "message_tokens", "answer_tokens"):
            kind = getattr(self, name).kind
            require(kind in ("fixed", "lognormal"), f"{group}{name}: kind={kind} must be fixed or lognormal")
        room = int(CHARACTER_SHARE * self.max_prompt_tokens) - self.system_tokens
        require(
            room >= 2 * NAMING_TOKENS and self.max_prompt_tokens >= 256,
            f"{group}max_prompt_tokens={self.max_prompt_tokens} must be at least 256, and half of it above "
            f"system_tokens={self.system_tokens}",
        )
        _check_template(self.template)

    @property
    def step_tokens(self) -> int:
        """Step of the truncation in tokens; naive truncation has steps of one token."""
        return self.truncation_step_tokens if self.truncation == "cache_aware" else 1


def _check_template(parts: Sequence[PromptPart]) -> None:
    """Raise ValueError unless the parts are those of a conversation and only the history is truncated."""
    names = [part.name for part in parts]
    require(
        not parts or names == list(PART_NAMES),
        f"workload.conversations.template: the parts must be {', '.join(PART_NAMES)}, not {', '.join(names)}",
    )
    cut = [part.name for part in parts if part.truncation_priority]
    require(
        cut in ([], ["history"]) and bool(cut) == bool(parts),
        "workload.conversations.template: history must have truncation_priority=1 and the others 0",
    )


def overruled(word: Mapping[str, Any]) -> str:
    """One line, with the remedy, on a word (as a tree) that conversations overrule; empty if they do not.

    It goes by the word, because a saved experiment holds the means that its conversations gave its lengths.
    """
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
