"""Parts of a page before any HTML: sections of figures, tables, facts and paragraphs.

Other modules fill them, and the template lays them out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.views.shown import Answer, Table


@dataclass(frozen=True, slots=True)
class FigureBlock:
    """A drawing with the table of its data, and the file and columns of both.

    `narrow` is the same drawn for a phone; without it the wide one scrolls there.
    """

    id: str
    title: str
    svg: str
    caption: str
    table: Table
    source: str
    narrow: str = ""


@dataclass(frozen=True, slots=True)
class Missing:
    """The reason why a figure cannot be drawn, in its place."""

    title: str
    why: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Pairs of a name and its value."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to read or copy as they are; `folded` ones open by their title."""

    title: str
    text: str
    folded: bool = False


Block = Table | FigureBlock | Missing | Facts | Paragraph | Code | Answer


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with its purpose and blocks; `id` is its anchor."""

    id: str
    title: str
    purpose: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report; `answer` is None for several runs without a study."""

    title: str
    heading: str
    subtitle: str
    answer: Answer | None
    sections: Sequence[Section]
