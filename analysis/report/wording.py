"""Values as a reader is to see them: unknown is said, infinite is a word, no figure has idle digits.

Knows types of values; knows no run.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from analysis.report.blocks import Cell, Table
from conf.io.one_line import one_line

UNKNOWN = "unknown"
MOST_LETTERS = 400
"""Letters of a text in a table (our choice); the file that it is from has all of them."""


def value(what: Any) -> str:
    """Anything that may stand in a table."""
    if what is None:
        return UNKNOWN
    if isinstance(what, bool):
        return "yes" if what else "no"
    if isinstance(what, datetime):
        return moment(what.isoformat())
    if isinstance(what, int | float | str):
        return figure(what) if not isinstance(what, str) or what in ("inf", "-inf") else cut(what)
    if isinstance(what, Mapping):
        return ", ".join(f"{key} {value(each)}" for key, each in what.items())
    if isinstance(what, Sequence):
        return "; ".join(map(value, what)) or "none"
    return str(what)


def cut(text: str, most: int = MOST_LETTERS) -> str:
    """A text on one line, with so many letters of it."""
    return one_line(text, most)


def figure(what: float | str | None) -> str:
    """A number to four digits, whole above 1000; JSON carries an infinite one as text."""
    if what is None:
        return UNKNOWN
    number = float(what)
    if math.isnan(number):
        return UNKNOWN
    if math.isinf(number):
        return "infinite" if number > 0 else "-infinite"
    if isinstance(what, int) or abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.4g}"


def qps(what: float | None) -> str:
    """A rate to a hundredth, as the screen has it."""
    return UNKNOWN if what is None else f"{what:,.2f}"


def bound(limit: str, most_ms: float) -> str:
    """A bound in words that no line break parts."""
    return f"p90 {limit.upper()} ≤ {figure(most_ms)} ms".replace(" ", "\N{NO-BREAK SPACE}")


def moment(stamp: str | None) -> str:
    """An ISO time in UTC to the second; as it is where it is none."""
    if not stamp:
        return UNKNOWN
    try:
        return datetime.fromisoformat(stamp).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return one_line(stamp, MOST_LETTERS)


def table(caption: str, found: pa.Table, null: str = UNKNOWN) -> Table:
    """An Arrow table as cells, under the names of its columns, which carry their units."""
    columns = [
        [null if each is None else value(each) for each in column.to_pylist()] for column in found.columns
    ]
    rows: tuple[tuple[Cell, ...], ...] = tuple(zip(*columns, strict=True)) if columns else ()
    return Table(caption, tuple(found.column_names), rows)
