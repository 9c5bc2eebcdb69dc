"""Parts of a page before any HTML: figures, tables, facts and paragraphs, and values as text."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any

import pyarrow as pa

from analysis.figures.exhibit import Exhibit, NoData
from analysis.stats.estimate import UNKNOWN, number
from analysis.views.shown import Answer, Cell, Fact, Table
from conf.io.one_line import one_line, reason


@dataclass(frozen=True, slots=True)
class FigureBlock:
    """A drawing with the table of its data, and the files of both."""

    id: str
    title: str
    svg: str
    caption: str
    table: Table
    source: str


@dataclass(frozen=True, slots=True)
class Missing:
    """The reason why a figure cannot be drawn, in its place."""

    title: str
    why: str


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to read or copy as they are; `folded` ones open by their title."""

    title: str
    text: str
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Definitions:
    """What a capacity and its interval mean, which the template says; `several` names what pools runs."""

    bounds: str
    is_joint: bool
    several: str
    metrics: Table


Block = Table | FigureBlock | Missing | Code | Definitions | Answer | tuple[Fact, ...] | str
"""A part of a section; text is a paragraph."""


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading with its purpose, which the template has of every `id` that stands for one."""

    id: str
    blocks: tuple[Block, ...]
    title: str = ""
    purpose: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report; `answer` is None for several runs without a study."""

    title: str
    heading: str
    subtitle: str
    answer: Answer | None
    sections: Sequence[Section]


MOST_LETTERS = 400
"""Most letters of a text in a table (our choice); the file behind it has all of them."""


def value(item: Any) -> str:
    """Any value of a table as text."""
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, datetime):
        return moment(item.isoformat())
    if item is None or isinstance(item, int | float) or item in ("inf", "-inf"):
        return figure(item)
    if isinstance(item, str):
        return one_line(item, MOST_LETTERS)
    if isinstance(item, Mapping):
        return ", ".join(f"{key} {value(each)}" for key, each in item.items())
    if isinstance(item, Sequence):
        return "; ".join(map(value, item)) or "none"
    return str(item)


def figure(it: float | str | None) -> str:
    """A number to four digits, whole above 1000; JSON carries an infinite one as text."""
    exact = math.nan if it is None else float(it)
    return f"{exact:,.0f}" if 1000 <= abs(exact) < math.inf else number(exact)


def moment(stamp: str | None) -> str:
    """An ISO time in UTC to the second; any other text stays."""
    if not stamp:
        return UNKNOWN
    try:
        return datetime.fromisoformat(stamp).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return one_line(stamp, MOST_LETTERS)


MOST_ACROSS = 6
"""Most columns of runs side by side; more fit the page better as rows (our choice)."""


def across(table: Table) -> Table:
    """The table turned: a column for each row, so that few rows with many columns fit a page."""
    if len(table.rows) > MOST_ACROSS:
        return table
    heads, *rows = zip(table.heads, *table.rows, strict=True)
    return Table(table.title, tuple(map(str, heads)), tuple(rows))


def arrow_table(caption: str, table: pa.Table, null: str = UNKNOWN) -> Table:
    """An Arrow table as cells, under the names of its columns, which carry their units."""
    columns = [
        [null if each is None else value(each) for each in column.to_pylist()] for column in table.columns
    ]
    rows: tuple[tuple[Cell, ...], ...] = tuple(zip(*columns, strict=True)) if columns else ()
    return Table(caption, tuple(table.column_names), rows)


BROKEN = "it could not be drawn"


def without_empty(sections: Sequence[Section]) -> list[Section]:
    """The sections that show something, and one at the end for what the others could not show, and why."""
    empty = [
        section
        for section in sections
        if section.blocks and all(isinstance(block, Missing) for block in section.blocks)
    ]
    reasons = tuple(block for section in empty for block in section.blocks)
    kept = [section for section in sections if section not in empty]
    return [*kept, Section("absent", reasons)] if reasons else kept


def figure_block(exhibit: type[Exhibit], subject: Any, prefix: str = "") -> Block:
    """The figure with its table, or why there is none; `prefix` keeps its anchors apart from others'."""
    name = f"figure-{prefix}{exhibit.name}"

    def drawn() -> FigureBlock:
        shown = exhibit(subject)
        alt = shown.alt()
        svg = shown.svg(name).replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1)
        table = arrow_table(f"What is drawn: {exhibit.title}", shown.table())
        return FigureBlock(name, exhibit.title, svg, alt, table, exhibit.source)

    return block_or_reason(exhibit.title, drawn)


def block_or_reason(title: str, block: Callable[[], Block]) -> Block:
    """A block, or why there is none: the verdict must not be lost with a figure or a table."""
    try:
        return block()
    except NoData as why:
        return Missing(title, str(why).rstrip("."))
    except Exception as error:  # noqa: BLE001
        return Missing(title, f"{BROKEN} ({type(error).__name__}: {reason(error)})")
