"""Text on a screen: lines broken at words, wide tables at a gap between columns; knows no command.

A pipe gets every line whole, for it may go on to grep, and JSON never comes this way.
"""

import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TextIO

WIDEST = 100
"""Columns of a line at most, however wide the terminal: longer ones are hard to read (our choice)."""
NARROWEST = 40
"""A terminal that says it is narrower gets lines of this width all the same."""
HANG = 2
"""Columns by which what goes on below a line is indented further."""
GAPS = 3
"""A line with so many wide gaps is a row of a table."""
LEAST_SHARE = 0.6
"""Of the width, the least that a row fills before it is cut (our choice)."""
GAP = re.compile(r"(?<=\S) {2,}(?=\S)")


def say(text: str, stream: TextIO | None = None) -> None:
    """Write lines to a stream, by default standard output, fitted to the terminal if it is one."""
    out = sys.stdout if stream is None else stream
    out.write((fit(text, _columns(out)) if out.isatty() else text) + "\n")
    out.flush()


def fit(text: str, width: int) -> str:
    """The text in lines of at most `width` columns, but for longer words."""
    lines = text.split("\n")
    folded: list[str] = []
    for is_row, block in groupby(lines, _is_row):
        rows = list(block)
        folded += _table(rows, width) if is_row else [one for line in rows for one in _prose(line, width)]
    return "\n".join(folded)


def _columns(stream: TextIO) -> int:
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 80
    return min(max(columns, NARROWEST), WIDEST)


def _is_row(line: str) -> bool:
    return len(GAP.findall(line)) >= GAPS


def _prose(line: str, width: int) -> list[str]:
    """A long line over several, those after the first indented further; a comment stays one."""
    if len(line) <= width:
        return [line]
    mark = "#" if line.startswith("#") else ""
    indent = len(line) - len(line.lstrip()) + HANG
    more = mark + " " * (indent + len(mark))
    return textwrap.wrap(
        line, width, subsequent_indent=more, break_long_words=False, break_on_hyphens=False
    ) or [line]


def _table(rows: Sequence[str], width: int) -> list[str]:
    """Rows cut at the same gaps, so that what goes on below stands in columns too."""
    pieces = [list(_pieces(row, _cuts(rows, width))) for row in rows]
    return [piece for row in pieces for piece in row if piece.strip()]


def _cuts(rows: Sequence[str], width: int) -> list[int]:
    """Where all rows are cut: the last gap that they share within the width, then again in what is left."""
    longest = max(map(len, rows))
    padded = [row.ljust(longest) for row in rows]
    gaps = [at for at in range(1, longest) if all(row[at - 1] == " " for row in padded)]
    begins = [at for at in gaps if any(row[at] != " " for row in padded)]
    wide = [at for at in begins if at - 1 in gaps]
    cuts, begin, room = [0], 0, width
    while longest - begin > room:
        least = begin + room * LEAST_SHARE
        fitting = [at for at in begins if least < at <= begin + room]
        if not fitting:
            break
        begin = max([at for at in wide if at in fitting] or fitting)
        room = width - 2 * HANG
        cuts.append(begin)
    return cuts


def _pieces(row: str, cuts: Sequence[int]) -> Iterator[str]:
    for begin, end in zip(cuts, [*cuts[1:], None], strict=True):
        yield (" " * 2 * HANG if begin else "") + row[begin:end].rstrip()
