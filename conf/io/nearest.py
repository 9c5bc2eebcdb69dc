"""Suggestions of known names for an unknown one, and argparse's messages with them."""

import argparse
import difflib
from collections.abc import Sequence

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


def check_choice(action: argparse.Action, value: object) -> None:
    """Raise ArgumentError, with the nearest choice, for a value that is no choice of an argument."""
    if action.choices is None or value in action.choices:
        return
    known = [str(choice) for choice in action.choices]
    what = "/".join(action.option_strings) or str(action.dest)
    near = hint(nearest(str(value), known))
    raise argparse.ArgumentError(None, f"unknown {what} {value!r}{near}; choose from {', '.join(known)}")


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
        said = f"{flag.lstrip('-')}={value if equals else 'VALUE'}"
        return f"unknown flag '{flag}'; keys are set without dashes: {said}"
    if message.startswith(MISSING):
        names = message.removeprefix(MISSING)
        verb = f"name a verb: {', '.join(verbs)}" if verbs and names.startswith("verb") else ""
        return verb or f"{names} is missing"
    return message
