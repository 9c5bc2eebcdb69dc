"""Fits text to a screen: lines break at words, wide tables at a gap between columns."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

HANG = 2
"""Columns by which continuation lines are indented further."""
GAPS = 3
"""Fewest wide gaps of a line that is a row of a table."""
LEAST_SHARE = 0.6
"""Least share of the width that a row fills before it is cut (our choice)."""
GAP = re.compile(r"(?<=\S) {2,}(?=\S)")


def fit(text: str, width: int) -> str:
    """The text in lines of at most `width` columns, except for longer words."""
    lines = text.split("\n")
    folded: list[str] = []
    for is_row, block in groupby(lines, _is_row):
        rows = list(block)
        folded += _table(rows, width) if is_row else [one for line in rows for one in _prose(line, width)]
    return "\n".join(folded)


def _is_row(line: str) -> bool:
    return len(GAP.findall(line)) >= GAPS


def _prose(line: str, width: int) -> list[str]:
    """A long line as several, indented further after the first; a comment stays a comment."""
    if len(line) <= width:
        return [line]
    mark = "#" if line.startswith("#") else ""
    indent = len(line) - len(line.lstrip()) + HANG
    more = mark + " " * (indent + len(mark))
    return textwrap.wrap(
        line, width, subsequent_indent=more, break_long_words=False, break_on_hyphens=False
    ) or [line]


def _table(rows: Sequence[str], width: int) -> list[str]:
    """Rows cut at the same gaps, so that the continuation lines are columns too."""
    pieces = [list(_pieces(row, _cuts(rows, width))) for row in rows]
    return [piece for row in pieces for piece in row if piece.strip()]


def _cuts(rows: Sequence[str], width: int) -> list[int]:
    """Positions of the cuts: the last gap that all rows share within the width, and again in the rest."""
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
