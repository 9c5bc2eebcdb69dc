"""Writes printable text to stdout and stderr, fitted to the terminal's width; stdout is for results alone."""

import io
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from itertools import groupby
from typing import TextIO

from conf.io.check import ConfigError
from conf.io.one_line import one_line, printable

STDOUT, STDERR = 1, 2
WIDEST = 100
"""Most columns of a line on any terminal: longer ones are hard to read (our choice)."""
NARROWEST = 40
"""Least width of lines, also on a narrower terminal (our choice)."""
MOST_OF_AN_ERROR = 4000
"""Most letters of an error, which may name all choices (our choice)."""


def shown(text: str) -> str:
    """Text of several lines, each printable."""
    return "\n".join(map(printable, text.split("\n")))


def tell(text: str, out: TextIO | None = None) -> None:
    """Write lines for people to stdout, or to `out`: fitted to a terminal, unbroken in a pipe."""
    out = out or sys.stdout
    _write(fit(shown(text), _columns(out)) if out.isatty() else shown(text), out)


def data(text: str, out: TextIO | None = None) -> None:
    """Write lines for programs, such as JSON and files, to stdout, or to `out`: never broken."""
    _write(shown(text), out or sys.stdout)


def note(line: str) -> None:
    """Write one line of progress to stderr."""
    tell(printable(line), sys.stderr)


def error(reason: object) -> None:
    """Write the reason of a failed command to stderr: a line, or one for each of a ConfigError's reasons."""
    for line in reason.reasons if isinstance(reason, ConfigError) else [str(reason)]:
        note(f"error: {one_line(line, MOST_OF_AN_ERROR)}")


def _columns(stream: TextIO) -> int:
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 80
    return min(max(columns, NARROWEST), WIDEST)


def _write(text: str, out: TextIO) -> None:
    out.write(f"{text}\n")
    out.flush()


@contextmanager
def own_stdout() -> Iterator[TextIO]:
    """Reserve stdout for our results, on the stream returned: all other writers go to stderr.

    The others are Ray, which prints its processes' output there, native code and child processes.
    """
    ours = sys.stdout
    ours.flush()
    with ExitStack() as stack:
        if _is_real(ours):
            kept = stack.enter_context(
                os.fdopen(os.dup(STDOUT), "w", encoding=ours.encoding, errors=ours.errors)
            )
            os.dup2(STDERR, STDOUT)
            stack.callback(os.dup2, kept.fileno(), STDOUT)
            ours = kept
        stack.enter_context(redirect_stdout(sys.stderr))
        yield ours


def _is_real(stream: TextIO) -> bool:
    """True for the process's own stdout; tests and notebooks replace it."""
    try:
        return stream.fileno() == STDOUT
    except (OSError, io.UnsupportedOperation):
        return False


def give_up_stdout() -> None:
    """Discard all further output: its reader is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)


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
    for is_row, block in groupby(lines, lambda line: len(GAP.findall(line)) >= GAPS):
        rows = list(block)
        folded += _table(rows, width) if is_row else [piece for line in rows for piece in _prose(line, width)]
    return "\n".join(folded)


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
