"""The experiment that the words of `python -m loadgen` ask for, and the words that a verb honours."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from conf import ConfigError, Experiment, load
from conf.matrix import PREFIX
from conf.specs.images import tokens_of
from conf.specs.published_ladder import Progressive
from loadgen.cli import idle_words, live_view
from loadgen.cli.grammar import LOADING
from loadgen.prompts import tokenizer
from loadgen.run import endpoint
from loadgen.traffic import conversation_means, trace

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
    live_view.refuse(arguments)
    idle = arguments.verb not in LOADING or (arguments.verb == "recommend" and not arguments.measure)
    if arguments.quiet and (idle or arguments.json):
        why = "--json prints no progress" if arguments.json else f"{arguments.verb} puts no load on a service"
        raise ConfigError(f"--quiet leaves the progress of a load out, and {why}; leave it out")
    if arguments.json and arguments.dry_run:
        raise ConfigError("--dry-run prints a configuration for people, no JSON lines; leave --json out")


def resumed(arguments: argparse.Namespace) -> Path:
    """The folder to resume. Raises ConfigError for anything else."""
    if len(arguments.words) != 1 or arguments.config:
        raise ConfigError("resume takes one run folder and nothing else: python -m loadgen resume runs/NAME")
    return Path(arguments.words[0])


def asked(verb: str, words: Sequence[str], config: Path | None) -> Experiment:
    """The experiment of the words; a prediction takes ten virtual hours unless the words choose a search.

    Raises ConfigError with the remedy for words that the verb does not honour.
    """
    given, words = list(words), list(words)
    if verb == "predict" and not any(word.startswith("search=") for word in words):
        words.append("search=virtual")
    if verb == "predict" and not any(word.startswith("cluster.session=") for word in words):
        words.append("cluster.session=fake")  # nothing is started, so that any number of nodes will do
    experiment = load(words, config)
    workload = tokenizer.located(conversation_means.resolve(trace.resolve(experiment.workload)))
    experiment = sized(replace(experiment, workload=workload, target=endpoint.located(experiment.target)))
    _refuse_idle_words(experiment, verb)
    why = idle_words.idle(experiment, verb, given)
    if verb in ("sweep", "compare"):
        why = why or idle_words.overspent(experiment, given)
    if why:
        raise ConfigError(why)
    if verb == "progressive" and experiment.progressive.lengths == "paper":
        _refuse_own_lengths(words)
    kind = experiment.engine.kind
    if kind == "external" and verb != "predict":
        endpoint.access_to(experiment.target)
    elif kind != "simulated" and verb == "predict":
        raise ConfigError(f"predict needs engine=simulated, not {kind}")
    return experiment


def sized(experiment: Experiment) -> Experiment:
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


def _refuse_idle_words(experiment: Experiment, verb: str) -> None:
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


def _refuse_replay(experiment: Experiment, verb: str) -> None:
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
