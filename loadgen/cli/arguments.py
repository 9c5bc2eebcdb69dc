"""Arguments of `python -m loadgen`: verbs, flags, help, and flags without effect. Imports no numpy."""

import argparse
import tomllib
from pathlib import Path
from typing import Any

from analysis.live.address import Address
from conf.io.check import ConfigError
from conf.io.one_line import OneLineParser
from conf.matrix import PREFIX
from conf.words import groups

TABLE = tomllib.loads(Path(__file__).with_name("verbs.toml").read_text())
VERBS: dict[str, dict[str, Any]] = TABLE["verbs"]
FLAGS: dict[str, dict[str, Any]] = {f"--{name}": facts for name, facts in TABLE["flags"].items()}
WORDS_HELP = "choices and values, in any order"
LIVE = "--live"
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
    own = VERBS.get(verb, {})
    top.add_argument("words", nargs="*", metavar="key=value", help=own.get("words", WORDS_HELP))
    top.add_argument("--config", type=Path, metavar="FILE", help="start from the config.yaml of a run folder")
    top.add_argument(
        "--dry-run", action="store_true", help="print what differs from the defaults, and the plan"
    )
    top.add_argument("--all", action="store_true", help="with --dry-run: print the whole configuration")
    top.add_argument("--json", action="store_true", help="JSON lines on stdout, the result last")
    for flag, facts in FLAGS.items():
        settings = {name: value for name, value in facts.items() if name != "verbs"}
        if "type" in settings:
            settings["type"] = {"path": Path}[settings["type"]]
        if not verb:
            settings["help"] = f"{', '.join(facts['verbs'])}: {facts['help']}"
        elif verb not in facts["verbs"]:
            settings["help"] = argparse.SUPPRESS
        names = (flag, "-o") if flag == "--out" and verb in facts["verbs"] else (flag,)
        top.add_argument(*names, **settings)
    if own.get("measures"):
        top.add_argument("-o", dest="run_folders", metavar="FOLDER", help="folder for runs, as out=FOLDER")
    return top


def refuse_idle_flags(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for a flag without effect, and for a page whose port cannot be listened on."""
    for flag, facts in FLAGS.items():
        verbs = facts["verbs"]
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
