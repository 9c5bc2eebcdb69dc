"""An answer before it is laid out: a headline, named facts, tables and notes; as text and as HTML."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from conf.io.one_line import printable

if TYPE_CHECKING:
    from jinja2 import Environment

Fact = tuple[str, str]
"""A name and its value."""
MOST_ON_A_LINE = 40
"""Most letters of a cell whose column is not broken into lines (our choice)."""
MOST_LETTERS = 40_000
"""Most letters of any one text, so that no server's words make a page large (our choice)."""
NO_NUMBERS = "", "unknown", "infinite", "none", "not claimed", "open"
"""Texts in the place of a number."""
INDENT = "  "


@dataclass(frozen=True, slots=True)
class Link:
    """A cell that links to another page."""

    text: str
    href: str

    def __str__(self) -> str:
        return self.text


Cell = str | Link


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under `heads`; `tones` colours each row, most of all in the column `state`.

    A tone is `ok`, `note`, `failed` or `unknown`; empty is plain. A `folded` table opens by its title; one
    that `stacks` lays the cells of a row over each other on a narrow screen.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    tones: tuple[str, ...] = ()
    state: int | None = None
    folded: bool = False
    stacks: bool = False

    @property
    def looks(self) -> tuple[str, ...]:
        """Layout of each column: `number` at the right, `words` in lines, `state` in colour."""
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.heads)
        return tuple(self._look(place, cells) for place, cells in enumerate(columns))

    def _look(self, place: int, cells: tuple[Cell, ...]) -> str:
        if place == self.state:
            return "state"
        if any(len(str(cell)) > MOST_ON_A_LINE for cell in cells):
            return "words"
        texts = [cell for cell in cells if isinstance(cell, str) and cell not in NO_NUMBERS]
        return "number" if texts and all(text.lstrip("-")[:1].isdigit() for text in texts) else ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verdict says: a word above everything else, a headline, facts, tables and notes.

    `tone` is `good`, `short` (valid, but a target was missed) or `bad`.
    """

    word: str
    tone: str
    headline: str
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        facts = (f"{INDENT}{printable(f'{name}: {value}')}" for name, value in self.facts)
        tables = (line for table in self.tables for line in table_lines(table))
        notes = (f"{INDENT}{printable(note)}" for note in self.notes)
        return "\n".join([printable(f"{self.word}  {self.headline}"), *facts, *tables, *notes])

    def _repr_html_(self) -> str:
        macros: Any = environment().get_template("answer.html.j2").module
        return str(macros.whole(self))


def table_lines(table: Table) -> list[str]:
    """A table as aligned lines, its title above and its note below."""
    from rich.cells import cell_len

    rows = [[printable(str(cell)) for cell in row] for row in (table.heads, *table.rows)]
    widths, looks = [max(map(cell_len, column)) for column in zip(*rows, strict=True)], table.looks
    lines = [f"{INDENT}{table.title}"] if table.title else []
    for row in rows:
        gaps = (" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        cells = zip(row, gaps, looks, strict=True)
        padded = (f"{gap}{cell}" if look == "number" else f"{cell}{gap}" for cell, gap, look in cells)
        lines.append(f"{INDENT}{INDENT}{'  '.join(padded).rstrip()}")
    return [*lines, *([f"{INDENT}{table.note}"] if table.note else [])]


@cache
def environment() -> "Environment":
    """Jinja's environment of all pages; words of servers and users are escaped, and cut if absurdly long."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=ChoiceLoader([PackageLoader("analysis.views", "."), PackageLoader("analysis.report", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_cut,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["kind"] = lambda block: type(block).__name__
    return made


def _cut(value: Any) -> Any:
    """A value for the page; markup, which has `__html__`, is our own and stays whole."""
    if not isinstance(value, str) or hasattr(value, "__html__") or len(value) <= MOST_LETTERS:
        return value
    return f"{value[:MOST_LETTERS]} ... (cut here; the run's files have all of it)"
