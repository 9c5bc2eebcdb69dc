"""Prompt templates: parts of Jinja2 text, rendered to tokens and cut to a limit.

The form is that of Character.ai's prompt-poet (parts with name, content, role and truncation priority,
truncation in fixed steps), written anew: here the YAML comes first and Jinja2 fills one part's content, so
that no user text can add a part.
"""

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import TemplateError

from conf import ConfigError
from conf.io.one_line import one_line, reason
from conf.specs.conversation import PART_NAMES, Conversations, PromptPart
from loadgen.prompts.bounded_templates import WRONG, BoundedTemplate
from loadgen.prompts.tokenizer import Encoded
from loadgen.traffic.lengths import cut_tokens

Encode = Callable[[str], Encoded]
WORD = re.compile(r"\s*(?:\w+|[^\w\s])|\s+$")
STAND_IN_IDS = 2**16


@dataclass(frozen=True, slots=True)
class RenderedPart:
    """A rendered part; the first `left_out` of its tokens were cut off to fit."""

    name: str
    role: str
    truncation_priority: int
    text: str
    encoded: Encoded
    left_out: int = 0

    @property
    def tokens(self) -> list[int]:
        """The ids of the remaining tokens."""
        return [number for number, _ in self.encoded[self.left_out :]]

    @property
    def left(self) -> str:
        """The remaining text."""
        if self.left_out >= len(self.encoded):
            return "" if self.left_out else self.text
        return self.text[self.encoded[self.left_out][1] if self.left_out else 0 :]


class PromptTemplate:
    """Parts to be filled with data. Raises ConfigError for a content that is not Jinja2.

    A name that the data lacks is an error, never an empty text.
    """

    def __init__(self, parts: Sequence[PromptPart], encode: Encode | None = None) -> None:
        self._encode = encode or by_words
        self._parts = []
        for part in parts:
            try:
                self._parts.append((part, BoundedTemplate(part.content)))
            except (TemplateError, *WRONG) as error:
                raise _refusal(part, error) from error

    def render(self, data: Mapping[str, Any]) -> list[RenderedPart]:
        """All parts, filled; one with `each` once for every item. Raises ConfigError if data is missing."""
        pieces = []
        for part, content in self._parts:
            try:
                items = [{"item": item} for item in data[part.each]] if part.each else [{}]
                texts = [content.render({**data, **item}) for item in items]
            except (TemplateError, *WRONG) as error:
                raise _refusal(part, error) from error
            head = part.name, part.role, part.truncation_priority
            pieces += [RenderedPart(*head, text, self._encode(text)) for text in texts]
        return pieces


def fitted(pieces: Sequence[RenderedPart], limit_tokens: int, step_tokens: int) -> list[RenderedPart]:
    """The parts cut to at most `limit_tokens`, in whole steps, by the rule of planned traffic (`cut_tokens`).

    Parts of priority 1 are cut first, the oldest before the others. Raises ConfigError if the parts that are
    never cut are too long.
    """
    spare = sum(len(piece.encoded) for piece in pieces if piece.truncation_priority)
    fixed = sum(len(piece.encoded) for piece in pieces) - spare
    room = limit_tokens - fixed
    if room < 0:
        raise ConfigError(f"template: {fixed} tokens must stay but the limit is {limit_tokens}; raise it")
    left = min(spare, int(cut_tokens(spare, room, step_tokens)))
    parts = list(pieces)
    order = [i for i, piece in enumerate(pieces) if piece.truncation_priority]
    for i in sorted(order, key=lambda i: pieces[i].truncation_priority):
        gone = min(left, len(pieces[i].encoded))
        parts[i], left = replace(pieces[i], left_out=gone), left - gone
    return parts


def token_ids(pieces: Sequence[RenderedPart]) -> list[int]:
    """The remaining token ids; each part is encoded by itself, so that no later text changes its tokens."""
    return [number for piece in pieces for number in piece.tokens]


def messages(pieces: Sequence[RenderedPart]) -> list[dict[str, str]]:
    """The remaining parts as messages of a chat API."""
    return [{"role": piece.role, "content": piece.left} for piece in pieces if piece.left]


def by_words(written: str) -> Encoded:
    """A stand-in for a tokenizer: a word or a mark, with the space before it, is one token."""
    words = [(match.group(), match.start()) for match in WORD.finditer(written)]
    return [(zlib.crc32(word.encode()) % STAND_IN_IDS, start) for word, start in words]


def parts_of(spec: Conversations) -> list[PromptPart]:
    """The parts of a conversation's template; without a template, parts that are only their text."""
    return spec.template or [_bare(name) for name in PART_NAMES]


def _bare(name: str) -> PromptPart:
    content = {
        "system": "{{ system }}",
        "character": "{{ character.definition }}",
        "persona": "{{ user.persona }}",
        "history": "{{ item.text }}",
        "message": "{{ message }}",
    }[name]
    cut = name == "history"
    return PromptPart(name, content, truncation_priority=int(cut), each="history" if cut else "")


def _refusal(part: PromptPart, error: Exception) -> ConfigError:
    why = f"the data has no list {error}" if isinstance(error, KeyError) else reason(error)
    return ConfigError(f"template: part {one_line(part.name, 40)}: {one_line(why)}")
