# PYTHON_ARGCOMPLETE_OK
"""The console command `maxqps`: finds the package of a verb and passes the words on.

It imports that package only, so that help and version answer at once.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from conf.io.one_line import versions

ROOMS = {
    "loadgen": (
        *("sweep", "probe", "predict", "compare", "recommend", "quality", "progressive", "recipe"),
        "resume",
    ),
    "analysis": ("show", "report", "compare", "plan", "export", "calibrate", "live"),
    "cluster": ("preflight", "render"),
    "serve_apps": ("render", "model"),
}
"""The verbs of each package. The short form of a verb that two packages have belongs to the first."""
PURPOSES = {
    "loadgen": "load a service, search, predict",
    "analysis": "read results, plan with them",
    "cluster": "check nodes, write cluster files",
    "serve_apps": "print vLLM's commands, tiny model",
}
EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    first, *rest = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if first == "help" and rest:
        return main([*rest, "--help"])
    if first in ("help", "-h", "--help"):
        print(overview())
        return 0
    if first == "--version":
        print(versions())
        return 0
    if first == "schema" and not rest:
        from conf.typed import schema_text

        print(schema_text())
        return 0
    if first in ROOMS:
        return _run(first, rest)
    room = next((room for room, verbs in ROOMS.items() if first in verbs), "")
    return _run(room, [first, *rest]) if room else _unknown(first)


def overview() -> str:
    """The verbs by package, and where their help is."""
    lines = [f"  {PURPOSES[room]:<36}{', '.join(_short(room))}" for room in ROOMS]
    shared = [f"{room} {verb}" for room, verbs in ROOMS.items() for verb in verbs if verb not in _short(room)]
    return "\n".join(
        [
            "usage: maxqps VERB [words and flags]",
            "",
            *lines,
            "",
            "maxqps schema prints the JSON schema of a configuration, for editors.",
            f"Verbs that two packages have: maxqps {', maxqps '.join(shared)}.",
            "maxqps help VERB shows the words and examples of a verb. maxqps --version shows the versions.",
        ]
    )


def _short(room: str) -> list[str]:
    """The verbs of a package that no package before it has."""
    before = list(ROOMS)[: list(ROOMS).index(room)]
    return [verb for verb in ROOMS[room] if all(verb not in ROOMS[other] for other in before)]


def _run(room: str, words: list[str]) -> int:
    # `room` is one of our own four names, never a word of the user's.
    code: int = import_module(f"{room}.__main__").main(words)
    return code


def _complete() -> None:
    """Write the completions that a shell requested and end the process; do nothing without a request.

    Flags are offered for the verbs of `loadgen` and `analysis` only.
    """
    # Completion in a shell needs the parsers.
    import argcomplete

    from analysis.__main__ import grammar
    from conf.keys import suggested
    from loadgen.cli.arguments import parser

    folders = argcomplete.FilesCompleter()
    flags_of = {"loadgen": lambda verb: parser(verb, ""), "analysis": grammar}

    def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", room: str, verb: str) -> None:
        offered = verbs.add_parser(verb)
        words = offered.add_argument("words", nargs="*")
        words.completer = lambda prefix, **_: [*suggested(prefix), *folders(prefix)]  # type: ignore[attr-defined]
        for action in flags_of[room](verb)._actions if room in flags_of else ():
            if set(action.option_strings) - {"-h", "--help"} and action.help != argparse.SUPPRESS:
                offered._add_action(action)

    top = argparse.ArgumentParser("maxqps")
    top.add_argument("--version", action="store_true")
    alone = top.add_subparsers()
    alone.add_parser("schema")
    for room, verbs in ROOMS.items():
        under = alone.add_parser(room).add_subparsers()
        for verb in verbs:
            add(under, room, verb)
        for verb in _short(room):
            add(alone, room, verb)
    argcomplete.autocomplete(top)


def _unknown(word: str) -> int:
    from conf.io import terminal
    from conf.io.one_line import hint, nearest, one_line

    verbs = list(dict.fromkeys(["schema", *(verb for verbs in ROOMS.values() for verb in verbs)]))
    near = hint(nearest(word, verbs)) or f"; choose from {', '.join(verbs)}"
    terminal.error(f"unknown verb '{one_line(word, 40)}'{near}")
    return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
