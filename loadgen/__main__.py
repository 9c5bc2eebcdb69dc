"""Maximum QPS per node of an LLM service within its latency bounds, with an interval."""

import signal
import sys
from collections.abc import Sequence

from loadgen.cli.arguments import VERBS, parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    verb = next((word for word in words if word in VERBS), "")
    arguments = parser(verb, description(verb)).parse_intermixed_args(words)
    if folder := getattr(arguments, "run_folders", None):
        arguments.words.append(f"out={folder}")
    _end_on_signals()
    # Acts bring numpy, Arrow and the compiled loops, for which help does not wait.
    from loadgen.cli import commands

    return commands.run(arguments)


def description(verb: str) -> str:
    """The text of `--help`: of a verb with its examples, or of all verbs."""
    lines = [line for name in ([verb] if verb else VERBS) for line in VERBS[name]["examples"].splitlines()]
    examples = ["", "examples:", *(f"  python -m loadgen {line}" for line in lines)]
    if verb:
        return "\n".join([VERBS[verb]["purpose"], *examples])
    acts = [f"  {name:<13}{facts['purpose']}" for name, facts in VERBS.items()]
    return "\n".join([str(__doc__), *examples, "", "verbs:", *acts])


def _end_on_signals() -> None:
    """Let SIGINT and SIGTERM both end a run like Ctrl-C; a background job starts with SIGINT ignored."""
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
