"""Read run folders and other tools' results, and plan with them.

examples:
  python -m analysis show runs/20261121-091200-a1b2                the verdict and its evidence
  python -m analysis show runs/20261121-091200-a1b2 --recompute    computed again from its Parquet files
  python -m analysis show runs/tp8 slo.ttft_p90_ms=500             the same sweep judged by another bound
  python -m analysis report runs/20261121-091200-a1b2              one HTML file with figures and provenance
  python -m analysis compare runs/tp8 runs/tp4                     capacities side by side, and their ratio
  python -m analysis plan runs/tp8 demand.peak_qps=200 plan.spare_nodes=1 plan.node_hour_usd=16
  python -m analysis plan layout=dp2_tp4_ep4 demand.peak_qps=200   with a prediction instead of a run
  python -m analysis export runs/tp8 --format csv --out tp8.csv    its requests, or jsonl
  python -m analysis show profile_export.jsonl slo.ttft_p90_ms=2000    another tool's result, judged here
  python -m analysis calibrate runs/recipe --out node7.yaml        constants of the engine model from probes
  python -m analysis calibrate --forward times.json --out node7.yaml    or from exact batches of vLLM
  python -m analysis live runs/20261121-091200-a1b2                follow a run or study in a browser
  python -m analysis live runs/tp8 --port 8090                     on a port of your choice
"""

import argparse
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conf.io.one_line import OneLineParser

VERBS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("verbs.toml").read_text())
"""What each verb does, in one sentence, and its arguments."""
EXIT_CODES = (
    "exit codes: 0 done; 1 internal error, another result by --recompute, or altered files of a run;\n"
    "2 wrong usage; of plan: 4 the run is void, 6 only a lower bound is known"
)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Parser of the command line up to the verb."""
    verbs = "\n".join(f"  {verb:<10} {facts['purpose']}" for verb, facts in VERBS.items())
    top = OneLineParser(
        prog="python -m analysis",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"verbs (each has its own --help):\n{verbs}\n\n{EXIT_CODES}",
    )
    top.add_argument("verb", choices=VERBS, help="what to do")
    return top


def grammar(verb: str) -> argparse.ArgumentParser:
    """Parser of what follows a verb."""
    facts, kinds = VERBS[verb], {"path": Path, "place": _place}
    rest = OneLineParser(
        prog=f"python -m analysis {verb}", description=facts["purpose"], epilog=facts.get("epilog")
    )
    if rest.epilog:
        rest.formatter_class = argparse.RawDescriptionHelpFormatter
    for name, settings in facts["arguments"].items():
        names = (name, "-o") if name == "--out" else (name,)
        kind = {"type": kinds[settings["type"]]} if "type" in settings else {}
        rest.add_argument(*names, **settings | kind)
    return rest


def _place(word: str) -> Path:
    """A path, or the local copy of a URI."""
    # Arrow's file systems, which help does not need.
    from analysis.results import locations
    from analysis.results.runs import RunError

    try:
        return locations.local(word)
    except RunError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = parser(__doc__).parse_args(words[:1]).verb
    arguments = grammar(verb).parse_intermixed_args(words[1:])
    # Acts bring numpy, Arrow and the compiled loops, for which help does not wait.
    from analysis import acts

    return acts.done(verb, arguments)


if __name__ == "__main__":
    sys.exit(main())
