"""Preview of a conversation workload: an example prompt, and the share that caches can reuse.

Knows templates and means; draws nothing and sends nothing.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conf.specs.conversation import Conversations
from loadgen.prompts.templates import PromptTemplate, RenderedPart, fitted, parts_of
from loadgen.traffic.conversation_means import means_of

Kind = dict[str, int]
"""Tokens by part name."""


def lines(spec: Conversations) -> list[str]:
    """The parts of an average prompt, and the reusable share under both truncations."""
    pieces = example(spec)
    kept, naive = (fitted(pieces, spec.max_prompt_tokens, step) for step in (spec.step_tokens, 1))
    turn = round(spec.turns) - 1
    asked, other = means_of(spec), _otherwise(spec)
    cut = f"in steps of {spec.step_tokens}" if spec.truncation == "cache_aware" else "as little as fits"
    return [
        f"# an example prompt: turn {turn} of a session, every part and message of mean length",
        *(f"#   {line}" for line in _table(kept)),
        f"#   history is cut {cut}; naive truncation would leave out {_left_out(naive)} and move every turn",
        f"# a request in the mean: {asked.input_tokens:.0f} tokens in, {asked.output_tokens:.0f} out",
        f"# of its prompt tokens {asked.reusable:.1%} begin an earlier one (truncation={spec.truncation}), "
        f"{means_of(other).reusable:.1%} would with truncation={other.truncation}: no routing and no "
        "cache can serve more",
    ]


def example(spec: Conversations) -> list[RenderedPart]:
    """The rendered parts of a prompt in the middle of a session, not yet cut, with made-up words."""
    template = PromptTemplate(parts_of(spec))
    own: Kind = {
        "system": spec.system_tokens,
        "character": spec.character_tokens.mean,
        "persona": spec.persona_tokens.mean,
        "message": spec.message_tokens.mean,
    }
    said = [spec.message_tokens.mean, spec.answer_tokens.mean] * (round(spec.turns) - 1)
    empty = _tokens(template.render(_data(dict.fromkeys(own, 0), [0])))
    history = [max(0, tokens - empty["history"]) for tokens in said]
    return template.render(_data({name: max(0, own[name] - empty[name]) for name in own}, history))


def _data(words: Kind, history: list[int]) -> Mapping[str, Any]:
    return {
        "system": _words(words["system"]),
        "character": {"name": "Character", "definition": _words(words["character"])},
        "user": {"name": "User", "persona": _words(words["persona"])},
        "history": [
            {"author": ("User", "Character")[i % 2], "text": _words(count)} for i, count in enumerate(history)
        ],
        "message": _words(words["message"]),
    }


def _words(count: int) -> str:
    return " ".join(["word"] * count)


def _tokens(pieces: list[RenderedPart]) -> Kind:
    found: Kind = {}
    for piece in pieces:
        found[piece.name] = found.get(piece.name, 0) + len(piece.encoded)
    return found


def _left_out(pieces: list[RenderedPart]) -> int:
    return sum(piece.left_out for piece in pieces)


def _table(pieces: list[RenderedPart]) -> list[str]:
    before = _tokens(pieces)
    left = {name: sum(len(p.tokens) for p in pieces if p.name == name) for name in before}
    parts = {name: sum(piece.name == name for piece in pieces) for name in before}
    rows = [
        f"{name:<10} {left[name]:>6} tokens"
        + (f" of {before[name]}, in {parts[name]} messages" if parts[name] > 1 else "")
        for name in before
    ]
    return [*rows, f"{'prompt':<10} {sum(left.values()):>6} tokens"]


def _otherwise(spec: Conversations) -> Conversations:
    return replace(spec, truncation="naive" if spec.truncation == "cache_aware" else "cache_aware")
