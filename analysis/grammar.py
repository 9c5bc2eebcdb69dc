"""The grammar of `python -m analysis`: verbs, words and flags, and their help."""

import argparse
from pathlib import Path

from conf.io.one_line import OneLineParser

VERBS = {
    "show": "Print the verdict of a run, or how far a killed one came.",
    "report": "Write one self-contained HTML file about runs: verdict, figures, provenance.",
    "compare": "Lay runs side by side: what differs, their capacities and the ratio.",
    "plan": "Say how many nodes a demand needs, which rule asks for them, and what they cost.",
    "export": "Write the requests of a run as CSV or JSON lines.",
    "calibrate": "Fit the engine model's constants to probes of one machine.",
    "live": "Serve one page that follows a run or a study, also one that has ended, until Ctrl-C.",
}
"""One sentence on each verb."""
FORMATS = ("csv", "jsonl")
EXIT_CODES = (
    "exit codes: 0 done; 1 internal error, recomputed otherwise, or a run was altered after it ended;\n"
    "2 wrong usage; of plan: 4 the run is void, 6 only a lower bound is known"
)
PLAN_HELP = """words (docs/planning.md):
  demand.peak_qps=QPS            the rate of the whole service; or demand.mean_qps=QPS demand.peak_factor=F,
                                 or demand.hourly=FILE of 24 mean rates from midnight
  plan.basis=low                 the end of the interval that is planned with; or certified, estimate
  plan.headroom=0.15             share of the capacity left free at the peak
  plan.spare_nodes=1             nodes that may be lost at the peak
  plan.node_hour_usd=USD         price of a node; without it there is no cost
  plan.node_watts=W              power of a node, instead of what the run measured, if it did
  plan.node_availability=0.995   with plan.target_availability=0.9999: nodes so that enough are up
  plan.scale_up_minutes=M        how long a node takes until it serves

exit codes: 0 done; 2 wrong usage; 3, 4 or 5 that of a run that allows no plan (4: it is void); 6 only a lower
bound of the capacity is known"""
SOURCES_HELP = (
    "runs to plan with (several node counts measure the scaling), demand.* and plan.* words; without a run, "
    "words of loadgen predict"
)
SERVE_CONFIG_HELP = "write Ray Serve's autoscaling for the run's engines (docs/planning.md)"
PROBES_HELP = (
    "folders of probes or of a recipe; words say what the runs do not, as the engine's "
    "max_num_batched_tokens, and with model=NAME hardware=NAME begin with the published constants"
)
PORT_HELP = (
    "port of the page on this machine, by default one that is free; with HOST: others reach it too, "
    "without a password"
)


def parser(description: str | None) -> argparse.ArgumentParser:
    """The grammar of the command line up to the verb."""
    top = OneLineParser(
        prog="python -m analysis",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"every verb has its own --help\n\n{EXIT_CODES}",
    )
    top.add_argument("verb", choices=VERBS, help="what to do")
    return top


def grammar(verb: str) -> argparse.ArgumentParser:
    """The grammar of what follows a verb."""
    rest = OneLineParser(prog=f"python -m analysis {verb}", description=VERBS[verb])
    add = rest.add_argument
    if verb == "show":
        add("run", type=_place, help="run folder, study, or result of vllm bench serve, GuideLLM, AIPerf")
        bounds = "bounds to judge another tool's result by"
        add("words", nargs="*", default=[], metavar="slo.key=value", help=bounds)
        again = "compute counts and capacity again from Parquet; exit 1 if other"
        add("--recompute", action="store_true", help=again)
    elif verb == "report":
        add("runs", nargs="+", type=Path, metavar="RUN", help="run folders or studies")
        add("--out", type=Path, metavar="FILE", help="default: report.html in the folder of a single run")
    elif verb == "compare":
        add("runs", nargs="+", type=_place, metavar="RUN", help="two or more runs, studies, or results")
    elif verb == "plan":
        rest.formatter_class, rest.epilog = argparse.RawDescriptionHelpFormatter, PLAN_HELP
        add("words", nargs="+", metavar="RUN|key=value", help=SOURCES_HELP)
        add("--json", action="store_true", help="the plan as one line of JSON")
        add("--out", type=Path, metavar="FILE", help="write the plan as JSON, or as one page in .html")
        add("--serve-config", type=Path, metavar="FILE.yaml", help=SERVE_CONFIG_HELP)
    elif verb == "export":
        add("run", type=_place, help="run folder")
        add("--format", required=True, choices=FORMATS, help="the format to write")
        add("--out", type=Path, metavar="FILE", help="default: standard output")
    elif verb == "live":
        add("run", type=Path, help="folder of a run or a study that runs or has ended")
        add("--port", default="0", metavar="[HOST:]PORT", help=PORT_HELP)
    else:
        add("words", nargs="+", metavar="RUN|key=value", help=PROBES_HELP)
        add("--out", type=Path, metavar="FILE.yaml", help="write them for engine.constants=FILE")
    return rest


def _place(word: str) -> Path:
    """A path, or the local copy of what a URI names."""
    # Arrow's file systems, which help does not need.
    from analysis.results import locations
    from analysis.results.runs import RunError

    try:
        return locations.local(word)
    except RunError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
