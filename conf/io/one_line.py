"""Printable text on one line, without control characters that a terminal would obey.

Every room shows foreign text through this module: a server's answer, a file's content, an exception.
"""

import argparse
from typing import Any, NoReturn

from conf.io import nearest
from conf.io.versions import versions

EXIT_USAGE = 2
MOST_LETTERS = 1000
"""Most letters of a foreign text that are shown (our choice)."""
CUT = " ..."


class OneLineParser(argparse.ArgumentParser):
    """Parser with `--version` and `--quiet`. It reports wrong arguments in one line, with the nearest."""

    def __init__(self, *words: Any, **settings: Any) -> None:
        super().__init__(*words, **settings)
        self.add_argument("--version", action=_Version, help="print the versions and exit")
        self.add_argument("--quiet", action="store_true", help="print the result alone, and errors")

    def error(self, message: str) -> NoReturn:
        verbs = next((list(action.choices or ()) for action in self._actions if action.dest == "verb"), [])
        text = nearest.usage(message, list(self._option_string_actions), verbs)
        self.exit(EXIT_USAGE, f"error: {one_line(text)}; see --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        nearest.check_choice(action, value)


class _Version(argparse.Action):
    """Prints the versions and ends. argparse's own action would look them up for every command."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        print(versions())  # noqa: T201
        parser.exit()


def printable(text: str) -> str:
    """The text with spaces instead of control and format characters."""
    return text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)


def one_line(text: str, most: int = MOST_LETTERS) -> str:
    """The first `most` letters of a text, printable, with single spaces."""
    line = " ".join(printable(text[: 4 * most]).split())
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[:most]}{CUT}"


def plain(tree: Any) -> Any:
    """A tree of JSON's types with every text and key printable. Raises RecursionError if it is too deep."""
    if isinstance(tree, str):
        return printable(tree)
    if isinstance(tree, dict):
        return {printable(str(key)): plain(value) for key, value in tree.items()}
    return [plain(value) for value in tree] if isinstance(tree, list) else tree


def reason(error: BaseException) -> str:
    """The message of an exception on one line, or its type if it has none."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return one_line(f"{error.filename}: {error.strerror}")
    return one_line(str(error)) or type(error).__name__
