"""Writes to stdout and stderr: text that no terminal obeys, fitted to its width; stdout is for results alone.

Every room says its words through this module; knows no verb and no file.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import TextIO

from conf.io.one_line import one_line, printable
from conf.io.screen_width import fit

STDOUT, STDERR = 1, 2
WIDEST = 100
"""Columns of a line at most, however wide the terminal: longer ones are hard to read (our choice)."""
NARROWEST = 40
"""A terminal that says it is narrower gets lines of this width all the same (our choice)."""
MOST_OF_AN_ERROR = 4000
"""Letters of an error; ours name all choices where a word is wrong (our choice)."""


def shown(text: str) -> str:
    """Text of several lines as a terminal may see it."""
    return "\n".join(map(printable, text.split("\n")))


def tell(text: str, out: TextIO | None = None) -> None:
    """Write lines for people to stdout, or to `out`: fitted to a terminal, whole in a pipe, for grep."""
    out = out or sys.stdout
    _write(fit(shown(text), _columns(out)) if out.isatty() else shown(text), out)


def data(text: str, out: TextIO | None = None) -> None:
    """Write lines for programs, such as JSON and files, to stdout, or to `out`: whole on a terminal too."""
    _write(shown(text), out or sys.stdout)


def note(line: str) -> None:
    """Write one line about what goes on to stderr."""
    tell(printable(line), sys.stderr)


def error(reason: object) -> None:
    """Write why a command failed to stderr, in one line."""
    note(f"error: {one_line(str(reason), MOST_OF_AN_ERROR)}")


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
    """Give our own results to a stream that nobody else has: what others write to stdout goes to stderr.

    Others are Ray, which prints there what its processes say, and whatever native code and children do.
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
    """True of the process's own stdout: tests and notebooks have others."""
    try:
        return stream.fileno() == STDOUT
    except (OSError, io.UnsupportedOperation):
        return False


def give_up_stdout() -> None:
    """Let what is still to be written go nowhere: whoever read it is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
