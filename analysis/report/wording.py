"""Values as text: unknown and infinite are words, and no figure has idle digits."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from analysis.views.shown import Cell, Table
from conf.io.one_line import one_line
from conf.specs.bounds import JOINT, Limit, Slo, label, metric_of

UNKNOWN = "unknown"
MOST_ACROSS = 6
"""Most columns of runs side by side; more fit the page better as rows (our choice)."""
MOST_LETTERS = 400
"""Most letters of a text in a table (our choice); the file behind it has all of them."""


def value(it: Any) -> str:
    """Any value of a table as text."""
    if it is None:
        return UNKNOWN
    if isinstance(it, bool):
        return "yes" if it else "no"
    if isinstance(it, datetime):
        return moment(it.isoformat())
    if isinstance(it, int | float | str):
        return figure(it) if not isinstance(it, str) or it in ("inf", "-inf") else one_line(it, MOST_LETTERS)
    if isinstance(it, Mapping):
        return ", ".join(f"{key} {value(each)}" for key, each in it.items())
    if isinstance(it, Sequence):
        return "; ".join(map(value, it)) or "none"
    return str(it)


def figure(number: float | str | None) -> str:
    """A number to four digits, whole above 1000; JSON carries an infinite one as text."""
    if number is None:
        return UNKNOWN
    exact = float(number)
    if math.isnan(exact):
        return UNKNOWN
    if math.isinf(exact):
        return "infinite" if exact > 0 else "-infinite"
    if isinstance(number, int) or abs(exact) >= 1000:
        return f"{exact:,.0f}"
    return f"{exact:.4g}"


def bound(slo: Slo, limit: Limit) -> str:
    """A bound as text that no line break splits."""
    if metric_of(limit) == JOINT:
        return label(limit)
    return f"{label(limit)} ≤ {figure(slo.bound_ms(limit))} ms".replace(" ", "\N{NO-BREAK SPACE}")


def moment(stamp: str | None) -> str:
    """An ISO time in UTC to the second; any other text stays."""
    if not stamp:
        return UNKNOWN
    try:
        return datetime.fromisoformat(stamp).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return one_line(stamp, MOST_LETTERS)


def across(found: Table) -> Table:
    """The table turned: a column for each row, so that few rows with many columns fit a page."""
    if len(found.rows) > MOST_ACROSS:
        return found
    columns = tuple(zip(*found.rows, strict=True))
    (first, *heads), (names, *cells) = found.heads, columns
    rows = tuple((head, *line) for head, line in zip(heads, cells, strict=True))
    return Table(found.title, (first, *(str(name) for name in names)), rows)


def table(caption: str, found: pa.Table, null: str = UNKNOWN) -> Table:
    """An Arrow table as cells, under the names of its columns, which carry their units."""
    columns = [
        [null if each is None else value(each) for each in column.to_pylist()] for column in found.columns
    ]
    rows: tuple[tuple[Cell, ...], ...] = tuple(zip(*columns, strict=True)) if columns else ()
    return Table(caption, tuple(found.column_names), rows)
