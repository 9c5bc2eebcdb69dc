"""Prompt templates: parts of Jinja2 text, rendered to tokens and cut to a limit; strangers may write them.

The form is that of Character.ai's prompt-poet, written anew: here the YAML comes first and Jinja2 fills one
part's content, so that no user text can add a part. The language is values, `if`, `for` and plain filters;
what could grow without end is left out, so that a template costs at most a moment and a few megabytes."""

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment
from jinja2.visitor import NodeTransformer

from conf import ConfigError
from conf.io.one_line import one_line, reason
from conf.specs.workload import Conversations, PromptPart
from loadgen.traffic.schedule import cut_tokens

MOST_CHARACTERS = 2**24
"""Characters of a rendered part: twice those of a prompt of a million tokens (our choice)."""
MOST_SOURCE = 2**18
"""Characters of a part's template (our choice)."""
MOST_STEPS = 100_000
"""Passes through all loops of a part (our choice)."""
STEPS = "steps left"
"""Key of a rendering's step budget in its context, by a name that no template can use."""
FILTER_NAMES = (
    "abs capitalize count d default e escape first float int last length list lower reverse round title trim "
    "truncate upper wordcount"
)
WRONG = (TypeError, ValueError, LookupError, ArithmeticError, SyntaxError, RecursionError, MemoryError)
"""Errors that a template may raise besides Jinja's own."""
LANGUAGE = (
    "Template Output TemplateData Name Const List Tuple Getattr Getitem Slice Neg Concat Filter Keyword Test "
    "Compare Operand And Or Not CondExpr If For"
)
"""Kinds of syntax that a template may have."""


class BoundedTemplate:
    """One part's template. Raises Jinja's TemplateError or one of `WRONG` for an invalid template."""

    def __init__(self, source: str) -> None:
        if len(source) > MOST_SOURCE:
            raise TemplateSyntaxError(f"has more than {MOST_SOURCE} characters", 1)
        language = SandboxedEnvironment(
            undefined=StrictUndefined, keep_trailing_newline=True, finalize=_plain
        )
        language.globals = {}
        language.filters = {name: FILTERS[name] for name in FILTER_NAMES.split()}
        language.filters |= {"join": _joined, "replace": _replaced, "counted": _counted}
        tree = _Bounds().visit(language.parse(source))
        code = language.compile(tree)
        self._template = language.template_class.from_code(language, code, language.make_globals(None))

    def render(self, data: Mapping[str, Any]) -> str:
        """The text. Raises Jinja's TemplateError or one of `WRONG`."""
        texts, length = [], 0
        for piece in self._template.generate({**data, STEPS: iter(range(MOST_STEPS))}):
            length += len(piece)
            _refuse_long(length)
            texts.append(piece)
        return "".join(texts)


class _Bounds(NodeTransformer):
    """Refuses syntax outside the language; bounds loops and joins of texts."""

    def visit(self, node: nodes.Node, *args: Any, **more: Any) -> Any:
        if (kind := type(node).__name__) not in LANGUAGE.split():
            raise TemplateSyntaxError(f"{kind} is not in the language of templates here", node.lineno)
        is_value = kind in ("List", "Tuple") and getattr(node, "ctx", "load") == "load"
        # Lists of lists could grow with every loop around them.
        if is_value and not all(isinstance(each, nodes.Literal) for each in node.find_all(nodes.Expr)):
            raise TemplateSyntaxError("a list is of plain texts and numbers only", node.lineno)
        return super().visit(node, *args, **more)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            raise TemplateSyntaxError(
                "a recursive loop is not in the language of templates here", node.lineno
            )
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "join", [], [], None, None, lineno=node.lineno)


@pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if next(context[STEPS], None) is None:
            raise SecurityError(f"more than {MOST_STEPS} passes through its loops")
        yield item


def _joined(items: Iterable[Any], between: str = "") -> str:
    texts = [str(_plain(item)) for item in items]
    _refuse_long(len(between) * len(texts), *map(len, texts))
    return between.join(texts)


def _replaced(text: str, old: str, new: str) -> str:
    text, old, new = (str(_plain(each)) for each in (text, old, new))
    _refuse_long(len(text), text.count(old) * len(new))
    return text.replace(old, new)


def _plain(value: Any) -> Any:
    """A value that may be printed; a nested list is refused, since its text may far exceed its memory."""
    if value is None or isinstance(value, str | int | float | Undefined):
        return value
    raise SecurityError(f"a {type(value).__name__} is no text; loop over it")


def _refuse_long(*lengths: int) -> None:
    if sum(lengths) > MOST_CHARACTERS:
        raise SecurityError(f"it makes more than {MOST_CHARACTERS} characters")


Encoded = Sequence[tuple[int, int]]
"""Token ids, each with the position in the text where it begins."""
Encode = Callable[[str], Encoded]
WORD = re.compile(r"\s*(?:\w+|[^\w\s])|\s+$")
STAND_IN_IDS = 2**16


@dataclass(frozen=True)
class RenderedPart:
    """A rendered part; the first `left_out` of its tokens were cut off to fit."""

    part: PromptPart
    text: str
    encode: Encode
    left_out: int = 0

    @cached_property
    def encoded(self) -> Encoded:
        """All its tokens: a part is encoded by itself, so that no later text changes them."""
        return self.encode(self.text)

    @property
    def left(self) -> str:
        """The remaining text."""
        if not self.left_out:
            return self.text
        return self.text[self.encoded[self.left_out][1] :] if self.left_out < len(self.encoded) else ""


class PromptTemplate:
    """Parts to be filled with data, all of it needed. Raises ConfigError for a content that is no Jinja2."""

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
            pieces += [RenderedPart(part, text, self._encode) for text in texts]
        return pieces


def fitted(pieces: Sequence[RenderedPart], limit_tokens: int, step_tokens: int) -> list[RenderedPart]:
    """The parts cut to at most `limit_tokens`, in whole steps (`cut_tokens`): first the oldest of priority 1.

    Raises ConfigError if the parts that are never cut are too long.
    """
    cuttable = [i for i, piece in enumerate(pieces) if piece.part.truncation_priority]
    spare = sum(len(pieces[i].encoded) for i in cuttable)
    fixed = sum(len(piece.encoded) for piece in pieces) - spare
    if fixed > limit_tokens:
        raise ConfigError(f"template: {fixed} tokens must stay but the limit is {limit_tokens}; raise it")
    left = min(spare, int(cut_tokens(spare, limit_tokens - fixed, step_tokens)))
    parts = list(pieces)
    for i in sorted(cuttable, key=lambda i: pieces[i].part.truncation_priority):
        gone = min(left, len(pieces[i].encoded))
        parts[i], left = replace(pieces[i], left_out=gone), left - gone
    return parts


def token_ids(pieces: Sequence[RenderedPart]) -> list[int]:
    """The remaining token ids."""
    return [number for piece in pieces for number, _ in piece.encoded[piece.left_out :]]


def messages(pieces: Sequence[RenderedPart]) -> list[dict[str, str]]:
    """The remaining parts as messages of a chat API."""
    return [{"role": piece.part.role, "content": piece.left} for piece in pieces if piece.left]


def by_words(written: str) -> Encoded:
    """A stand-in for a tokenizer: a word or a mark, with the space before it, is one token."""
    words = [(match.group(), match.start()) for match in WORD.finditer(written)]
    return [(zlib.crc32(word.encode()) % STAND_IN_IDS, start) for word, start in words]


def parts_of(spec: Conversations) -> list[PromptPart]:
    """The parts of a conversation's template; without a template, parts that are only their text."""
    return spec.template or [
        PromptPart("system", "{{ system }}"),
        PromptPart("character", "{{ character.definition }}"),
        PromptPart("persona", "{{ user.persona }}"),
        PromptPart("history", "{{ item.text }}", truncation_priority=1, each="history"),
        PromptPart("message", "{{ message }}"),
    ]


def _refusal(part: PromptPart, error: Exception) -> ConfigError:
    why = f"the data has no list {error}" if isinstance(error, KeyError) else reason(error)
    return ConfigError(f"template: part {one_line(part.name, 40)}: {one_line(why)}")
