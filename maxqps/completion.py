"""Completes the command line of `maxqps` in a shell: verbs, words and their choices, and flags.

Flags are offered for the verbs of `loadgen` and `analysis` only.
"""

import argparse
from collections.abc import Mapping, Sequence

import argcomplete

from analysis.__main__ import grammar
from conf.keys import suggested
from loadgen.cli.arguments import parser

FOLDERS = argcomplete.FilesCompleter()


def complete(rooms: Mapping[str, Sequence[str]]) -> None:
    """Write the completions that a shell requested and end the process; do nothing without a request."""
    argcomplete.autocomplete(_all_verbs(rooms))


def _all_verbs(rooms: Mapping[str, Sequence[str]]) -> argparse.ArgumentParser:
    """Parser of every verb, under its package and alone."""
    top = argparse.ArgumentParser("maxqps")
    top.add_argument("--version", action="store_true")
    verbs = top.add_subparsers()
    verbs.add_parser("schema")
    alone: set[str] = set()
    for room, own in rooms.items():
        under = verbs.add_parser(room).add_subparsers()
        for verb in own:
            _words(under.add_parser(verb), room, verb)
            if verb not in alone:
                _words(verbs.add_parser(verb), room, verb)
        alone |= set(own)
    return top


def _words(one: argparse.ArgumentParser, room: str, verb: str) -> None:
    """Give a verb its words and flags."""
    words = one.add_argument("words", nargs="*")
    words.completer = lambda prefix, **_: [*suggested(prefix), *FOLDERS(prefix)]  # type: ignore[attr-defined]
    if room not in ("loadgen", "analysis"):
        return
    source = parser(verb, "") if room == "loadgen" else grammar(verb)
    for action in source._actions:
        if set(action.option_strings) - {"-h", "--help"} and action.help != argparse.SUPPRESS:
            one._add_action(action)
