"""The names nearest to one that nobody knows; knows letters only."""

import argparse
import difflib
from collections.abc import Sequence

ALIKE = 0.6
"""Share of letters that a name must have in common with what was typed (our choice)."""
AS_ALIKE = 0.15
"""Names are shown beside the nearest one while they are at most so much less alike (our choice)."""
BEGUN, LEAST_BEGUN = 0.8, 3
"""How alike a name is to its beginning, and how long that must be (our choice)."""
MOST = 3
MISSING, UNKNOWN = "the following arguments are required: ", "unrecognized arguments: "
"""How argparse begins what it says of these."""


def nearest(word: str, known: Sequence[str]) -> list[str]:
    """At most three of the known names, the nearest first; none if nothing is like the word."""
    alike = {name: _alike(word, name) for name in known}
    least = max(ALIKE, max(alike.values(), default=0.0) - AS_ALIKE)
    near = [name for name in alike if alike[name] >= least]
    return sorted(near, key=lambda name: -alike[name])[:MOST]


def _alike(word: str, name: str) -> float:
    """The share of letters that both have in common, in any case; a beginning of a name is much like it."""
    word, name = word.lower(), name.lower()
    begun = BEGUN if len(word) >= LEAST_BEGUN and name.startswith(word) else 0.0
    return max(begun, difflib.SequenceMatcher(None, name, word).ratio())


def hint(near: Sequence[str]) -> str:
    """The end of a sentence that names what may have been meant; empty where that is nothing."""
    return f"; did you mean {' or '.join(repr(name) for name in near)}?" if near else ""


def check_choice(action: argparse.Action, value: object) -> None:
    """Raise ArgumentError for a value that is not among the choices of an argument, with the nearest."""
    if action.choices is None or value in action.choices:
        return
    known = [str(choice) for choice in action.choices]
    what = "/".join(action.option_strings) or str(action.dest)
    near = hint(nearest(str(value), known))
    raise argparse.ArgumentError(None, f"unknown {what} {value!r}{near}; choose from {', '.join(known)}")


def usage(message: str, flags: Sequence[str], verbs: Sequence[str]) -> str:
    """What argparse says of wrong arguments, with the nearest of the known flags."""
    if message.startswith(UNKNOWN):
        word = message.removeprefix(UNKNOWN).split()[0]
        flag, equals, value = word.partition("=")
        if not word.startswith("-"):
            return f"'{word}' is one argument too many; leave it out"
        if near := nearest(flag, flags):
            return f"unknown flag '{flag}'{hint(near)}"
        said = f"{flag.lstrip('-')}={value if equals else 'VALUE'}"
        return f"unknown flag '{flag}'; keys are set without dashes: {said}"
    if message.startswith(MISSING):
        names = message.removeprefix(MISSING)
        verb = f"name a verb: {', '.join(verbs)}" if verbs and names.startswith("verb") else ""
        return verb or f"{names} is missing"
    return message
