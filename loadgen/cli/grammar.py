"""The grammar of `python -m loadgen`: verbs, words and flags, and their help."""

import argparse
from pathlib import Path
from typing import Any

from conf.io.one_line import OneLineParser
from conf.words import groups

VERBS = {
    "sweep": "Measure the capacity of a deployed or external service, or of every cell of a grid of them.",
    "probe": "Offer one load without a search, and judge it.",
    "predict": "Answer from the engine model alone: direct simulation on a virtual clock, of one point or a "
    "grid.",
    "compare": "Measure two services on the same requests.",
    "recommend": "Rank the shapes of a node by the nodes that a demand needs, and say what to measure to be "
    "sure.",
    "quality": "Ask two configurations the same questions, idle or under load: same, degraded or undecided.",
    "progressive": "Run the MI325X paper's benchmark: by the engine model alone, or over HTTP.",
    "recipe": "Record the probes from which the engine model's constants are fitted.",
    "resume": "Recover what a killed run or study left, and continue it.",
}
"""One sentence on each verb."""
WORDS_HELP = "choices and values, in any order"
OWN_WORDS = {
    "resume": "the run folder to continue",
    "compare": "two config.yaml, or words a.key=value and b.key=value; the rest holds for both",
    "quality": "two run folders, or words a.key=value and b.key=value; the rest holds for both",
}
LOADING = ("sweep", "probe", "compare", "quality", "progressive", "recipe", "resume", "recommend")
"""Verbs that may put load on a service."""
FLAGS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "--require": (
        ("probe",),
        {"action": "store_true", "help": "pass or fail rate_qps as soon as it is clear"},
    ),
    "--sensitivity": (
        ("predict",),
        {"action": "store_true", "help": "effect of each constant on the answer"},
    ),
    "--out": (
        ("predict", "progressive", "recommend"),
        {"type": Path, "metavar": "FILE", "help": "write the answers to FILE.parquet, FILE.csv or FILE.json"},
    ),
    "--requests": (
        ("predict",),
        {
            "type": Path,
            "metavar": "FILE",
            "help": "write a row per request of requests=N to FILE.parquet or FILE.csv",
        },
    ),
    "--measure": (
        ("recommend",),
        {"action": "store_true", "help": "measure the shapes that its proposals name"},
    ),
    "--quiet": (LOADING, {"action": "store_true", "help": "print the result alone, and errors"}),
    "--live": (
        LOADING,
        {
            "metavar": "[HOST:]PORT",
            "help": "follow the load in a browser, on this machine at PORT (0: one that is free); with HOST "
            "others reach the page too, without a password",
        },
    ),
}
"""Flags that only some verbs have: those verbs, and what argparse is told."""
EXIT_CODES = (
    "exit codes: 0 valid; 1 internal error; 2 wrong usage; 3 a bound is missed; 4 measurement void;\n"
    "5 target or deployment failed; 6 valid, but not shown;\n"
    "7 the quality gate found the answers degraded; 130 interrupted\n"
    "predict and sweep of a grid (matrix.KEY=[a,b] for any keys) end with the highest code of its cells"
)


def parser(verb: str, description: str | None) -> argparse.ArgumentParser:
    """The argument parser: a verb, words `key=value` in any order, and flags.

    Its help has the flags of `verb`, or all flags if that is empty; every flag is understood, so that one of
    another verb is refused by name.
    """
    choices = "\n".join(f"  {group}=  {', '.join(names)}" for group, names in groups().items())
    top = OneLineParser(
        prog="python -m loadgen",
        usage=f"python -m loadgen {verb} [key=value ...] [flags]" if verb else None,
        allow_abbrev=False,  # the manifest keeps the flags as they were typed
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="A bare group name chooses a file, a dotted key sets a value (slo.ttft_p90_ms=1500):\n"
        f"{choices}\n\n{EXIT_CODES}",
    )
    top.add_argument("verb", choices=list(VERBS), help=argparse.SUPPRESS if verb else "the act")
    top.add_argument("words", nargs="*", metavar="key=value", help=OWN_WORDS.get(verb, WORDS_HELP))
    top.add_argument("--config", type=Path, metavar="FILE", help="start from the config.yaml of a run folder")
    top.add_argument("--dry-run", action="store_true", help="print the resolved configuration and the plan")
    top.add_argument("--json", action="store_true", help="JSON lines on stdout, the result last")
    for flag, (verbs, settings) in FLAGS.items():
        of = {} if verb in verbs else {"help": argparse.SUPPRESS}
        if not verb:
            of = {"help": f"{', '.join(verbs)}: {settings['help']}"}
        top.add_argument(flag, **{**settings, **of})
    return top
