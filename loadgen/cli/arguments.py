"""Arguments of `python -m loadgen`: the parser with its help, the experiment of the words, and the refusals.

What brings numpy is imported where an experiment is made: help and completion do without it.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.live.address import Address
from conf.io.check import ConfigError
from conf.io.one_line import OneLineParser
from conf.matrix import PREFIX
from conf.specs.request_sizes import tokens_of
from conf.specs.search import Progressive
from conf.words import groups
from loadgen.cli.short_words import spelled

if TYPE_CHECKING:
    from conf import Experiment

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


PROBE_KEYS = ("rate_qps", "profile_qps", "concurrency", "requests", "duration_s")


def refuse_idle_flags(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for a flag without effect."""
    if arguments.require and arguments.verb != "probe":
        own = {"resume": "continues with its own configuration", "progressive": "has levels of its own"}
        finds = own.get(arguments.verb, "finds the rate itself")
        raise ConfigError(f"--require belongs to probe; {arguments.verb} {finds}")
    for flag in ("sensitivity", "out", "requests"):
        answering = ("predict", "progressive", "recommend") if flag == "out" else ("predict",)
        if getattr(arguments, flag) and (arguments.verb not in answering or arguments.dry_run):
            raise ConfigError(f"--{flag} belongs to an answer of {' or '.join(answering)}; leave it out")
    if arguments.measure and arguments.verb != "recommend":
        raise ConfigError(
            "--measure belongs to recommend, which it lets measure what it proposes; leave it out"
        )
    gridded = any(word.startswith(PREFIX) for word in arguments.words)
    if gridded and arguments.verb not in ("predict", "sweep"):
        raise ConfigError(
            f"{PREFIX}KEY=[...] belongs to predict and sweep; {arguments.verb} takes one value of a key"
        )
    _refuse_page(arguments)
    if arguments.all and not arguments.dry_run:
        raise ConfigError("--all belongs to --dry-run, which then prints the whole configuration; add that")


def _refuse_page(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for a page without a load to follow, and where its port cannot be listened on."""
    if arguments.live is None:
        return
    if arguments.verb == "recommend" and not arguments.measure:
        raise ConfigError(f"{LIVE} follows a load, and recommend loads with --measure only; leave it out")
    if arguments.verb not in LOADING:
        refuse_page_without_load(arguments, f"{arguments.verb} computes its answer")
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


def experiment_of(verb: str, words: Sequence[str], config: Path | None) -> "Experiment":
    """The experiment of the words; a prediction takes ten virtual hours unless the words choose a search.

    Raises ConfigError with the remedy for words that the verb does not honour.
    """
    from conf import load
    from loadgen.prompts import tokenizer
    from loadgen.run import endpoint
    from loadgen.traffic import trace
    from loadgen.traffic.prefix_sharing import with_mean_lengths

    words = spelled(words)
    typed = list(words)
    if verb == "predict" and not any(word.startswith("search=") for word in words):
        words.append("search=virtual")
    if verb == "predict" and not any(word.startswith("cluster.session=") for word in words):
        words.append("cluster.session=fake")  # nothing is started, so that any number of nodes will do
    experiment = load(words, config)
    workload = tokenizer.located(with_mean_lengths(trace.resolve(experiment.workload)))
    experiment = with_image_tokens(
        replace(experiment, workload=workload, target=endpoint.located(experiment.target))
    )
    _refuse_words_of_other_verbs(experiment, verb)
    why = word_without_effect(experiment, verb, typed)
    if verb in ("sweep", "compare"):
        why = why or budget_too_short(experiment, typed)
    if why:
        raise ConfigError(why)
    if verb == "progressive" and experiment.progressive.lengths == "paper":
        _refuse_own_lengths(words)
    kind = experiment.engine.kind
    if kind == "external" and verb != "predict":
        endpoint.access_to(experiment.target)
        is_named = config is not None or any(word.startswith("model.served_name=") for word in typed)
        experiment = endpoint.with_served_model(experiment, is_named)
    elif kind != "simulated" and verb == "predict":
        raise ConfigError(f"predict needs engine=simulated, not {kind}")
    return experiment


def with_image_tokens(experiment: "Experiment") -> "Experiment":
    """The experiment with the model's tokens per image, if it sends images."""
    images, workload = experiment.workload.images, experiment.workload
    if not images.most:
        return experiment
    tokens = tokens_of(images.width_px, images.height_px, experiment.model.image_token_px)
    return replace(experiment, workload=replace(workload, images=replace(images, tokens=tokens)))


def _refuse_own_lengths(words: Sequence[str]) -> None:
    own = ("workload=", "workload.input_tokens", "workload.output_tokens")
    if idle := next((word for word in words if word.startswith(own)), ""):
        raise ConfigError(
            f"{idle}: progressive sends requests of the paper's lengths; leave it out, or add "
            "progressive.lengths=workload"
        )


def _refuse_words_of_other_verbs(experiment: "Experiment", verb: str) -> None:
    """Refuse words that the verb does not honour, and a probe without a load."""
    loads = {"predict": ("rate_qps", "concurrency", "requests"), "recipe": ("rate_qps", "duration_s")}
    honoured = loads.get(verb, ())
    given = [key for key in PROBE_KEYS if getattr(experiment, key) and key not in honoured]
    if verb != "probe" and given:
        own = "has levels of its own" if verb == "progressive" else "finds the rate itself"
        raise ConfigError(f"{given[0]} belongs to probe; {verb} {own}")
    if verb != "predict":
        _refuse_replay(experiment, verb)
    if verb in ("probe", "recipe") and experiment.search.expected_qps:
        raise ConfigError(
            "search.expected_qps belongs to a search; probe offers the given load: "
            "leave it out, or add search.expected_qps=null where a file has it"
        )
    if verb != "progressive" and experiment.progressive != Progressive():
        raise ConfigError(f"progressive.* belongs to the verb progressive, not to {verb}; leave it out")
    if verb == "predict" and experiment.time_scale != 1:
        raise ConfigError("predict has no real clock; leave engine.time_scale out (or set it to 1)")
    parts = experiment.search.parts
    if parts > 1 and verb in ("predict", "probe", "recipe", "progressive"):
        raise ConfigError(
            f"{verb} is one run, not the {parts} of search.deployments and search.repeats; "
            "add search.deployments=1 search.repeats=1"
        )
    offered = (experiment.rate_qps, experiment.profile_qps, experiment.concurrency)
    if verb == "probe" and not any(offered) and experiment.workload.arrivals.kind != "trace":
        raise ConfigError(
            "probe needs rate_qps=... (QPS per node), profile_qps=[[second,QPS],...], concurrency=... or "
            "workload=trace"
        )


def _refuse_replay(experiment: "Experiment", verb: str) -> None:
    """Refuse, for a verb that measures, words that only a predicted replay of requests supports."""
    if experiment.workload.arrivals.kind == "vllm_bench":
        raise ConfigError(
            "workload.arrivals.kind=vllm_bench sends a number of requests, which predict replays; "
            f"{verb} takes kind=poisson, or kind=gamma with its burstiness"
        )
    if experiment.requests is not None and experiment.concurrency is None:
        raise ConfigError(
            "requests=... needs concurrency=...; rate_qps=... is held for duration_s=... (predict replays "
            "requests=... at a rate)"
        )
    if experiment.concurrency is not None and experiment.closed_requests <= experiment.concurrency:
        raise ConfigError(
            f"requests={experiment.requests} must be above concurrency={experiment.concurrency}: the first "
            "requests only fill it (predict replays such a burst)"
        )


# Words without effect belong to an engine, a policy or a search that was not chosen. Only typed words are
# looked at, because a saved file holds every key.
SEARCHED = ("search.budget_s", "search.min_windows", "search.confirm_s")
VIRTUAL = ("search.min_windows", "search.confirm_s", "fleet.")
NOT_OF = {
    "probe": (SEARCHED, "a search; a probe lasts duration_s=..."),
    "progressive": (SEARCHED, "a search; progressive has levels of its own"),
    "predict": (VIRTUAL, "what is measured; predict sends nothing"),
    "replay": (("search.", *VIRTUAL), "a search or a fleet; a replay sends a number of requests"),
}
"""Verb -> prefixes of keys that it ignores, and what they belong to; `replay` is one kind of predict."""


@dataclass(frozen=True, slots=True)
class IdleKey:
    """Keys that begin with `key` have no effect unless `honoured`; the choice `home` gives them one."""

    key: str
    honoured: Callable[["Experiment"], bool]
    home: str


MIXED = "lengths of another kind: that of a mixture follows from its values and weights"
IDLE_KEYS = (
    IdleKey("target.", lambda experiment: experiment.engine.kind == "external", "engine=external"),
    IdleKey(
        "cluster.address",
        lambda experiment: experiment.cluster.session == "address",
        "cluster.session=address",
    ),
    IdleKey(
        "routing.vnodes",
        lambda experiment: experiment.routing.policy in ("consistent_hash", "bounded_hash"),
        "routing=consistent_hash or bounded_hash",
    ),
    IdleKey(
        "routing.load_factor",
        lambda experiment: experiment.routing.policy == "bounded_hash",
        "routing=bounded_hash",
    ),
    IdleKey(
        "engine.drift_memory_s",
        lambda experiment: getattr(experiment.engine, "drift_sd", 0.0) > 0,
        "engine.drift_sd above 0",
    ),
    IdleKey(
        "engine.stall_mean_s",
        lambda experiment: getattr(experiment.engine, "stall_every_steps", 0) > 0,
        "engine.stall_every_steps above 0",
    ),
    IdleKey(
        "workload.input_tokens.mean",
        lambda experiment: experiment.workload.input_tokens.kind != "mixture",
        MIXED,
    ),
    IdleKey(
        "workload.output_tokens.mean",
        lambda experiment: experiment.workload.output_tokens.kind != "mixture",
        MIXED,
    ),
    IdleKey(
        "workload.images.",
        lambda experiment: experiment.workload.images.most > 0,
        "images, which workload.images.most=N adds",
    ),
    IdleKey(
        "workload.conversations.truncation_step_tokens",
        lambda experiment: (
            experiment.workload.conversations is None or experiment.workload.conversations.step_tokens > 1
        ),
        "workload.conversations.truncation=cache_aware",
    ),
)


def word_without_effect(experiment: "Experiment", verb: str, words: Sequence[str]) -> str:
    """The reason why a word has no effect, with the remedy; empty if all have one."""
    keys = [word.partition("=")[0] for word in words]
    for rule in IDLE_KEYS:
        for key in keys:
            if key.startswith(rule.key) and not rule.honoured(experiment):
                return f"{key} belongs to {rule.home}; leave it out"
    of_gate = next((key for key in keys if key.startswith("quality.")), "")
    if of_gate and verb != "quality":
        return f"{of_gate} belongs to quality; leave it out"
    if "engine.defect" in keys and verb != "quality":
        return "engine.defect belongs to quality: only compared answers show it"
    begins, home = NOT_OF.get("replay" if verb == "predict" and experiment.is_replay else verb, ((), ""))
    key = next((key for key in keys if key.startswith(begins)), "") if begins else ""
    return f"{key} belongs to {home}; leave it out" if key else ""


def budget_too_short(experiment: "Experiment", words: Sequence[str]) -> str:
    """The reason why the fewest windows do not fit a typed budget, with the remedy; empty if they fit."""
    search = experiment.search
    budget_s = search.budget_s / search.deployments
    if search.least_s <= budget_s or not any(word.startswith("search.") for word in words):
        return ""
    fitting = int(budget_s * search.min_windows / search.least_s)
    fewer = f"lower search.min_windows to {fitting}" if fitting else "shorten search.window_s"
    return (
        f"search.min_windows={search.min_windows} need {search.least_s:g} s, above search.budget_s="
        f"{search.budget_s:g}; {fewer}, or raise search.budget_s to {search.least_s * search.deployments:g}"
    )
