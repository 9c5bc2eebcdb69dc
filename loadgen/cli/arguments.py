"""Arguments of `python -m loadgen`: verbs, flags, help, and flags without effect. Imports no numpy."""

import argparse
from pathlib import Path
from typing import Any

from analysis.live.address import Address
from conf.io.check import ConfigError
from conf.io.one_line import OneLineParser
from conf.matrix import PREFIX
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
MEASURING = ("sweep", "probe", "compare", "quality", "recipe")
"""Verbs whose answer is a new folder of a run or a study."""
LIVE = "--live"
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
    LIVE: (
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
    top.add_argument(
        "--dry-run", action="store_true", help="print what differs from the defaults, and the plan"
    )
    top.add_argument("--all", action="store_true", help="with --dry-run: print the whole configuration")
    top.add_argument("--json", action="store_true", help="JSON lines on stdout, the result last")
    for flag, (verbs, settings) in FLAGS.items():
        of = {} if verb in verbs else {"help": argparse.SUPPRESS}
        if not verb:
            of = {"help": f"{', '.join(verbs)}: {settings['help']}"}
        names = (flag, "-o") if flag == "--out" and verb in verbs else (flag,)
        top.add_argument(*names, **{**settings, **of})
    if verb in MEASURING:
        top.add_argument("-o", dest="run_folders", metavar="FOLDER", help="folder for runs, as out=FOLDER")
    return top


def refuse_idle_flags(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for a flag without effect, and for a page whose port cannot be listened on."""
    for flag, (verbs, _) in FLAGS.items():
        is_set = getattr(arguments, flag.removeprefix("--")) not in (None, False)
        is_written = flag in ("--out", "--requests", "--sensitivity")
        if is_set and (arguments.verb not in verbs or (is_written and arguments.dry_run)):
            what = "an answer of " if is_written else ""
            raise ConfigError(f"{flag} belongs to {what}{' or '.join(verbs)}; leave it out")
    gridded = any(word.startswith(PREFIX) for word in arguments.words)
    if gridded and arguments.verb not in ("predict", "sweep"):
        raise ConfigError(
            f"{PREFIX}KEY=[...] belongs to predict and sweep; {arguments.verb} takes one value of a key"
        )
    if arguments.all and not arguments.dry_run:
        raise ConfigError("--all belongs to --dry-run, which then prints the whole configuration; add that")
    if arguments.verb == "recommend" and not arguments.measure:
        refuse_page_without_load(arguments, "recommend loads with --measure only")
    if arguments.live is not None:
        Address.from_words(arguments.live, LIVE).refuse_taken(LIVE)


def refuse_page_without_load(arguments: argparse.Namespace, why: str) -> None:
    """Raise ConfigError for a page where `why` says that there is no load to follow."""
    if arguments.live is not None:
        raise ConfigError(f"{LIVE} follows a load, and {why}; leave it out")


def folder_to_resume(arguments: argparse.Namespace) -> Path:
    """The folder of `resume`. Raises ConfigError for any other word."""
    if len(arguments.words) != 1 or arguments.config:
        raise ConfigError("resume takes one run folder and nothing else: python -m loadgen resume runs/NAME")
    return Path(arguments.words[0])
