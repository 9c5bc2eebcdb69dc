"""What a page is made of: sections of figures, tables, facts and words, before any HTML.

Knows shapes only; what stands in them is for the modules that fill them, how they look for the template.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Link:
    """A cell that leads to another page."""

    text: str
    href: str


Cell = str | Link

MOST_ROWS = 200
"""Rows of a table on the page (our choice); the file that it is from has all of them."""


NO_NUMBERS = "", "unknown", "infinite", "none", "not claimed"
"""What stands in the place of a number."""


def _numbers(cells: tuple[Cell, ...]) -> bool:
    texts = [cell for cell in cells if isinstance(cell, str) and cell not in NO_NUMBERS]
    return bool(texts) and all(text.lstrip("-")[:1].isdigit() for text in texts)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under `heads`. `tones` gives each row its look, which the column `state` shows most.

    A tone is `ok`, `note`, `failed` or `unknown`; empty is plain. `words` are the columns, from 0, whose text
    may be broken into lines. A `folded` table opens by its caption; one that `stacks` lays the cells of a row
    over each other on a narrow screen.
    """

    kind: ClassVar[str] = "table"

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    tones: tuple[str, ...] = ()
    state: int | None = None
    words: frozenset[int] = frozenset()
    note: str = ""
    folded: bool = False
    stacks: bool = False

    @property
    def shown(self) -> tuple[tuple[Cell, ...], ...]:
        """The rows that are on the page."""
        return self.rows[:MOST_ROWS]

    @property
    def remark(self) -> str:
        """The note below the table, and how many rows are not shown."""
        left_out = f"The first {MOST_ROWS} of {len(self.rows):,} rows." if len(self.rows) > MOST_ROWS else ""
        return f"{left_out} {self.note}".strip()

    @property
    def looks(self) -> tuple[str, ...]:
        """Of each column how it is laid out: `number` at the right, `words` in lines, `state` in colour."""
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.heads)
        return tuple(self._look(place, cells) for place, cells in enumerate(columns))

    def _look(self, place: int, cells: tuple[Cell, ...]) -> str:
        if place == self.state:
            return "state"
        if place in self.words:
            return "words"
        return "number" if _numbers(cells) else ""


@dataclass(frozen=True, slots=True)
class FigureBlock:
    """A drawing with the table of what it shows, and the file and columns that both are from."""

    kind: ClassVar[str] = "figure"

    id: str
    title: str
    svg: str
    caption: str
    table: Table
    source: str


@dataclass(frozen=True, slots=True)
class Missing:
    """What stands in the place of a figure that cannot be drawn: why."""

    kind: ClassVar[str] = "missing"

    title: str
    why: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and what is known of each."""

    kind: ClassVar[str] = "facts"

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph."""

    kind: ClassVar[str] = "words"

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to read or copy as they are; folded behind its title where `folded`."""

    kind: ClassVar[str] = "code"

    title: str
    text: str
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Banner:
    """What is claimed, or that nothing is: the first thing a reader sees.

    `tone` is `good`, `short` (valid, but not what was hoped for) or `bad`. `figures` are the few numbers that
    matter, each with what it is; `sentences` say the same in words, `remedy` what to do where nothing is
    claimed, `label` what the engine's figures are good for where it is not a real one.
    """

    kind: ClassVar[str] = "banner"

    word: str
    tone: str
    headline: str
    figures: tuple[tuple[str, str], ...] = ()
    sentences: tuple[str, ...] = ()
    remedy: str = ""
    label: str = ""


Block = Table | FigureBlock | Missing | Facts | Paragraph | Code | Banner


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, the question it answers, and what answers it; `id` is its anchor."""

    id: str
    title: str
    purpose: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report; `banner` is None where runs stand side by side that no study brings together."""

    title: str
    heading: str
    subtitle: str
    banner: Banner | None
    sections: Sequence[Section]
