"""The grammar of `python -m loadgen`: verbs, words and flags; knows nothing of what they do."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from analysis import summary
from conf.load import groups


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, like every other error here."""

    def error(self, message: str) -> NoReturn:
        self.exit(summary.EXIT_USAGE, f"error: {message}; see --help\n")


def parser(verbs: Sequence[str], description: str | None) -> argparse.ArgumentParser:
    """The grammar: a verb, words `key=value` in any order, and flags."""
    choices = "\n".join(f"  {group}=  {', '.join(names)}" for group, names in groups().items())
    top = OneLineParser(
        prog="python -m loadgen",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="A bare group name chooses a file, a dotted key sets a value (slo.ttft_p90_ms=1500):\n"
        f"{choices}\n\n"
        "exit codes: 0 valid; 1 internal error; 2 wrong usage; 3 a bound is missed; 4 measurement void;\n"
        "5 target or deployment failed; 6 budget over with an open end; 130 interrupted",
    )
    top.add_argument("verb", choices=verbs, help="what to do")
    top.add_argument(
        "words",
        nargs="*",
        metavar="key=value",
        help="choices and values, in any order; resume takes a run folder",
    )
    top.add_argument("--config", type=Path, metavar="FILE", help="start from the config.yaml of a run folder")
    top.add_argument("--dry-run", action="store_true", help="print the resolved configuration and the plan")
    top.add_argument("--json", action="store_true", help="JSON lines on stdout, the result last")
    return top
