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
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from conf.io.one_line import OneLineParser

VERBS = {
    "show": "Print the verdict of a run, a study or another tool's result.",
    "report": "Write one HTML file about runs: verdict, figures, provenance.",
    "compare": "Set runs side by side: what differs, their capacities and the ratio.",
    "plan": "Compute how many nodes a demand needs, by which rule, and what they cost.",
    "export": "Write the requests of a run as CSV or JSON lines.",
    "calibrate": "Fit the engine model's constants to probes of a machine.",
    "live": "Serve a page that follows a run or a study, until Ctrl-C.",
}
"""What each verb does, in one sentence."""
FORMATS = ("csv", "jsonl")
EXIT_CODES = (
    "exit codes: 0 done; 1 internal error, another result by --recompute, or altered files of a run;\n"
    "2 wrong usage; of plan: 4 the run is void, 6 only a lower bound is known"
)
PLAN_HELP = """words (docs/planning.md):
  demand.peak_qps=QPS            rate of the whole service; or demand.mean_qps=QPS demand.peak_factor=F,
                                 or demand.hourly=FILE of 24 mean rates from midnight
  plan.basis=low                 figure of the capacity to plan with; or certified, estimate
  plan.headroom=0.15             share of the capacity left free at the peak
  plan.spare_nodes=1             nodes that may be lost at the peak
  plan.node_hour_usd=USD         price of a node; without it there is no cost
  plan.node_watts=W              power of a node; by default what the run measured
  plan.node_availability=0.995   with plan.target_availability=0.9999: enough nodes are up that often
  plan.scale_up_minutes=M        time from requesting a node until it serves

exit codes: 0 done; 2 wrong usage; 3, 4 or 5 as the run, if it allows no plan (4: it is void); 6 only a lower
bound of the capacity is known"""
SOURCES_HELP = (
    "runs to plan with (several node counts measure the scaling), demand.* and plan.* words; without a run, "
    "the words of predict"
)
SERVE_CONFIG_HELP = "write Ray Serve's autoscaling settings for the plan (docs/planning.md)"
PROBES_HELP = (
    "folders of probes or of a recipe; words set what the runs do not record, such as the engine's "
    "max_num_batched_tokens; model=NAME hardware=NAME start from the published constants"
)
FORWARD_HELP = (
    "times of exact batches by vllm bench forward instead of probes (python -m serve_apps render "
    "--calibrate); words name model, hardware and layout"
)
PORT_HELP = (
    "port of the page on this machine, by default a free one; HOST:PORT lets others reach it, without a "
    "password"
)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Parser of the command line up to the verb."""
    verbs = "\n".join(f"  {verb:<10} {purpose}" for verb, purpose in VERBS.items())
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
    rest = OneLineParser(prog=f"python -m analysis {verb}", description=VERBS[verb])
    add, out = rest.add_argument, partial(rest.add_argument, "--out", "-o", type=Path)
    if verb == "show":
        add("run", type=_place, help="run folder, study, or result of vllm bench serve, GuideLLM, AIPerf")
        bounds = "other bounds to judge a sweep by, or another tool's result"
        add("words", nargs="*", default=[], metavar="slo.key=value", help=bounds)
        again = "compute counts and capacity again from Parquet; exit 1 if they differ"
        add("--recompute", action="store_true", help=again)
        add("--json", action="store_true", help="the whole verdict as one line of JSON")
        add("--all", action="store_true", help="every figure and check, not only what a plan needs")
    elif verb == "report":
        add("runs", nargs="+", type=Path, metavar="RUN", help="run folders or studies")
        out(metavar="FILE", help="default: report.html in the folder of a single run")
    elif verb == "compare":
        add("runs", nargs="+", type=_place, metavar="RUN", help="two or more runs, studies, or results")
    elif verb == "plan":
        rest.formatter_class, rest.epilog = argparse.RawDescriptionHelpFormatter, PLAN_HELP
        add("words", nargs="+", metavar="RUN|key=value", help=SOURCES_HELP)
        add("--json", action="store_true", help="the plan as one line of JSON")
        out(metavar="FILE", help="write the plan as JSON, or as one page in .html")
        add("--serve-config", type=Path, metavar="FILE.yaml", help=SERVE_CONFIG_HELP)
    elif verb == "export":
        add("run", type=_place, help="run folder")
        add("--format", required=True, choices=FORMATS, help="the format to write")
        out(metavar="FILE", help="default: standard output")
    elif verb == "live":
        add("run", type=Path, help="folder of a run or a study")
        add("--port", default="0", metavar="[HOST:]PORT", help=PORT_HELP)
    else:
        add("words", nargs="*", default=[], metavar="RUN|key=value", help=PROBES_HELP)
        add("--forward", type=Path, metavar="FILE.json", help=FORWARD_HELP)
        out(metavar="FILE.yaml", help="write the constants, for engine.constants=FILE")
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
