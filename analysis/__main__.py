"""Reads run folders from the command line.

examples:
  python -m analysis show runs/20261121-091200-a1b2
  python -m analysis show runs/20261121-091200-a1b2 --recompute
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from analysis import recount, studies, summary
from analysis.runs import RunError, load_run


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    arguments = parser().parse_args(argv)
    try:
        if arguments.recompute:
            return recompute(arguments.run)
        print(show(arguments.run))
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return summary.EXIT_USAGE
    return summary.EXIT_OK


def parser() -> argparse.ArgumentParser:
    """The grammar of the command line."""
    top = argparse.ArgumentParser(
        prog="python -m analysis", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = top.add_subparsers(dest="verb", required=True)
    show_verb = verbs.add_parser("show", help="print what a run concluded, or how far a killed one came")
    show_verb.add_argument("run", type=Path, help="run folder")
    show_verb.add_argument(
        "--recompute",
        action="store_true",
        help="compute counts and capacity again from Parquet; exit 1 if other",
    )
    return top


def recompute(path: Path) -> int:
    """What a run concluded beside what its Parquet files give; exit code 1 if they differ."""
    if studies.is_study(path):
        raise RunError(f"{path} is a study: recompute one of its parts, {path}/NAME")
    run = load_run(path)
    lines, identical = recount.text(run)
    print(f"{'IDENTICAL' if identical else 'DIFFERENT'}  {path} recomputed from its Parquet files\n{lines}")
    return summary.EXIT_OK if identical else summary.EXIT_INTERNAL


def show(path: Path) -> str:
    """The summary of a run; of one that did not end, what can be read."""
    if studies.is_study(path):
        return summary.text(studies.load_study(path))
    run = load_run(path)
    if run.sweep is not None:
        return summary.text(run.sweep, studies.whole(path))
    states = Counter(run.requests()["status"].to_pylist())
    counted = ", ".join(f"{count} {status}" for status, count in sorted(states.items())) or "none"
    lines = [
        f"UNFINISHED  {path} has no sweep.json",
        f"  requests: {counted}",
        f"  events: {len(run.events())}",
    ]
    if run.manifest.get("verb") == "sweep":
        lines.append(f"  to go on: python -m loadgen resume {studies.whole(path)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
