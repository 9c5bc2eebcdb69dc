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
"""The verbs of each package."""
FIRST: dict[str, str] = {}
for _room, _verbs in ROOMS.items():
    for _verb in _verbs:
        FIRST.setdefault(_verb, _room)
"""The package of each verb's short form: the first that has it."""
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
    if first in ROOMS or first in FIRST:
        room, words = (first, rest) if first in ROOMS else (FIRST[first], [first, *rest])
        # `room` is one of our own four names, never a word of the user's.
        code: int = import_module(f"{room}.__main__").main(words)
        return code
    from conf.io import terminal
    from conf.io.one_line import hint, nearest, one_line

    verbs = ["schema", *FIRST]
    near = hint(nearest(first, verbs)) or f"; choose from {', '.join(verbs)}"
    terminal.error(f"unknown verb '{one_line(first, 40)}'{near}")
    return EXIT_USAGE


def overview() -> str:
    """The verbs by package, and where their help is."""
    short = {room: [verb for verb in verbs if FIRST[verb] == room] for room, verbs in ROOMS.items()}
    lines = [f"  {PURPOSES[room]:<36}{', '.join(verbs)}" for room, verbs in short.items()]
    shared = [f"{room} {verb}" for room, verbs in ROOMS.items() for verb in verbs if FIRST[verb] != room]
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
            if FIRST[verb] == room:
                add(alone, room, verb)
    argcomplete.autocomplete(top)


if __name__ == "__main__":
    sys.exit(main())
