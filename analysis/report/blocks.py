"""Parts of a page before any HTML: sections of figures, tables, facts and paragraphs.

Other modules fill them, and the template lays them out.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A cell that links to another page."""

    text: str
    href: str


Cell = str | Link

MOST_ROWS = 200
"""Most rows of a table on the page (our choice); the file behind it has all of them."""

NO_NUMBERS = "", "unknown", "infinite", "none", "not claimed"
"""Texts in the place of a number."""


def _numbers(cells: tuple[Cell, ...]) -> bool:
    texts = [cell for cell in cells if isinstance(cell, str) and cell not in NO_NUMBERS]
    return bool(texts) and all(text.lstrip("-")[:1].isdigit() for text in texts)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under `heads`; `tones` colours each row, most of all in the column `state`.

    A tone is `ok`, `note`, `failed` or `unknown`; empty is plain. `words` are the columns, from 0, whose text
    may be broken into lines. A `folded` table opens by its caption; one that `stacks` lays the cells of a row
    over each other on a narrow screen.
    """

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
    def first_rows(self) -> tuple[tuple[Cell, ...], ...]:
        """The rows on the page."""
        return self.rows[:MOST_ROWS]

    @property
    def remark(self) -> str:
        """The note below the table, with the number of rows that are left out."""
        left_out = f"The first {MOST_ROWS} of {len(self.rows):,} rows." if len(self.rows) > MOST_ROWS else ""
        return f"{left_out} {self.note}".strip()

    @property
    def looks(self) -> tuple[str, ...]:
        """Layout of each column: `number` at the right, `words` in lines, `state` in colour."""
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


@dataclass(frozen=True, slots=True)
class Banner:
    """The claim, or its absence: the first block that a reader sees.

    `tone` is `good`, `short` (valid, but a target was missed) or `bad`. `figures` are named key numbers,
    `sentences` say the same in words, `remedy` helps if nothing is claimed, and `label` says how far the
    figures of an engine that is not real can be trusted.
    """

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
    """A heading with its purpose and blocks; `id` is its anchor."""

    id: str
    title: str
    purpose: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report; `banner` is None for several runs without a study."""

    title: str
    heading: str
    subtitle: str
    banner: Banner | None
    sections: Sequence[Section]
