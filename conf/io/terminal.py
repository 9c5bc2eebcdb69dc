"""Writes printable text to stdout and stderr, fitted to the terminal's width; stdout is for results alone."""

import io
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import TextIO

from conf.io.check import ConfigError
from conf.io.one_line import one_line, printable, reason

STDOUT, STDERR = 1, 2
EXIT_INTERNAL, EXIT_INTERRUPTED = 1, 130
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


def error(why: object) -> None:
    """Write the reason of a failed command to stderr: a line, or one for each of a ConfigError's reasons."""
    for line in why.reasons if isinstance(why, ConfigError) else [str(why)]:
        note(f"error: {one_line(line, MOST_OF_AN_ERROR)}")


def exit_code(act: Callable[[], int], *codes: tuple[type[Exception], int]) -> int:
    """The exit code of a command, with one line on stderr for what went wrong.

    `codes` are those of errors that say what to do, an error before those of which it is one.
    """
    try:
        return act()
    except tuple(kind for kind, _ in codes) as refusal:
        error(refusal)
        return next(code for kind, code in codes if isinstance(refusal, kind))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output is gone; a run folder, if any, is complete
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
    except OSError as failure:
        error(reason(failure))
    return EXIT_INTERNAL


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


HANG = 2
"""Columns by which continuation lines are indented further."""


def fit(text: str, width: int) -> str:
    """The text in lines of at most `width` columns, except for longer words."""
    return "\n".join(piece for line in text.split("\n") for piece in _prose(line, width))


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
