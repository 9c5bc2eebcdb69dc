"""The two sides of `compare` and `quality`: from words or saved configurations, what they share, the plan."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis.quality.gate import fewest_prompts
from conf import ConfigError, Experiment
from conf.compose import dump
from conf.keys import differences
from loadgen.cli.words import checked_experiment
from loadgen.studies import comparison
from loadgen.studies.comparison import CHATS, CLOCK, NODES, OF_BOTH
from loadgen.studies.gate_questions import gate_pace, longest_s, refuse_synthetic

USAGE = (
    "{verb} takes two config.yaml of runs, or words for one side: "
    "python -m loadgen {verb} a.layout=dp1_tp8_ep8 b.layout=dp2_tp4_ep4"
)
GATE_SHARED = ("workload", "quality", "fleet")
"""Groups that decide what both sides of the quality gate are asked."""


def compared(words: Sequence[str], config: Path | None) -> tuple[Experiment, Experiment]:
    """A and B of a comparison, with one seed.

    Raises ConfigError unless there are two files or a difference, and if B cannot get A's requests.
    """
    a, b = _sides("compare", words, config)
    _refuse_other_requests(a, b)
    return a, b


def gate_sides(words: Sequence[str], config: Path | None) -> tuple[Experiment, Experiment]:
    """A and B of the quality gate.

    Raises ConfigError unless there are two files or a difference, and for what the gate cannot ask.
    """
    a, b = _sides("quality", words, config)
    _refuse_other_questions(a, b)
    for side in (a, b):
        _refuse_questions(side)
    return a, b


def _sides(verb: str, words: Sequence[str], config: Path | None) -> tuple[Experiment, Experiment]:
    usage = USAGE.format(verb=verb)
    files = [Path(word) for word in words if "=" not in word]
    words = [word for word in words if "=" in word]
    if len(files) not in (0, 2) or (files and config):
        raise ConfigError(usage)
    for word in words:
        side, _, rest = word.partition(".")
        key = rest.partition("=")[0]
        if side in ("a", "b") and key in OF_BOTH:
            raise ConfigError(f"{side}.{key}: {key} belongs to both: {rest}")
    bases: Sequence[Path | None] = files or [config, config]
    a, b = (
        checked_experiment(verb, _side_words(side, words), base)
        for side, base in zip("ab", bases, strict=True)
    )
    # The name in a file is that of the run it comes from.
    name = a.run if any(word.startswith("run=") for word in words) else None
    a, b = replace(a, run=name), replace(b, run=name, seed=a.seed, out=a.out)
    if not differences(a, b):
        raise ConfigError(f"A and B are the same; {usage}")
    return a, b


def _side_words(side: str, words: Sequence[str]) -> list[str]:
    """The words of one side, its own last, so that they win."""
    both = [word for word in words if not word.startswith(("a.", "b."))]
    own = [word.removeprefix(f"{side}.") for word in words if word.startswith(f"{side}.")]
    keys = {word.partition("=")[0] for word in own}
    return [word for word in both if word.partition("=")[0] not in keys] + own


def lines(a: Experiment, b: Experiment) -> list[str]:
    """The compared configurations, above A's."""
    differing = (f"{key} {ours} -> {theirs}" for key, (ours, theirs) in differences(a, b).items())
    replicas = f"{a.replicas} replica(s) for A, then {b.replicas} for B"
    return [
        f"A is below; B differs in {', '.join(differing)}",
        f"two services, one after the other: {replicas}",
    ]


def gate_plan(a: Experiment, b: Experiment) -> list[str]:
    """The plan: A's configuration, its differences from B's, and what both are asked."""
    quality, pace = a.quality, gate_pace(a)
    most_s = longest_s(a, pace)
    lasts = "as long as that takes" if most_s is None else f"at most {most_s:.0f} s"
    return [
        *(f"# {line}" for line in lines(a, b)),
        *dump(a).splitlines(),
        f"# {quality.prompts} prompts of {quality.prompt_tokens} tokens, {quality.answer_tokens} out: "
        "A answers each twice, then B until the verdict is clear",
        f"# questions come {pace.words}: {lasts}, and two deployments",
    ]


def answer_folders(words: Sequence[str]) -> tuple[Path, Path] | None:
    """The two folders of recorded answers among the words; None for other words."""
    folders = [Path(word) for word in words if Path(word).is_dir()]
    if not folders:
        return None
    if len(folders) != 2 or len(words) != 2:
        raise ConfigError(
            "quality of recorded answers takes two folders and nothing else: python -m loadgen quality "
            "runs/NAME/a runs/OTHER/b"
        )
    return folders[0], folders[1]


def _refuse_other_requests(a: Experiment, b: Experiment) -> None:
    """Raise ConfigError if B would not get A's requests."""
    apart = comparison.unlike(a, b)
    if apart in comparison.SHARED:
        raise ConfigError(
            f"compare sends B the requests of A, but {apart} differs; give {apart}=... for both"
        )
    if apart == CHATS:
        raise ConfigError(
            "compare scales A's requests in time, which users of conversations do not follow; measure both "
            "by sweep matrix.KEY=[A,B]"
        )
    if apart == NODES:
        raise ConfigError(
            "compare needs as many nodes on both sides, pooled on both or routing=per_node on both: "
            f"cluster.nodes are {a.cluster.nodes} and {b.cluster.nodes}, streams {a.streams} and {b.streams}"
        )
    if apart == CLOCK:
        raise ConfigError(
            "compare needs one clock, but engine.time_scale differs: "
            f"{a.time_scale:g} and {b.time_scale:g}; give engine.time_scale=... for both"
        )
    if a.search.parts > 1:
        raise ConfigError("compare is one pair of sweeps; add search.deployments=1 search.repeats=1")


def _refuse_other_questions(a: Experiment, b: Experiment) -> None:
    """Raise ConfigError if B would not get A's questions and load."""
    for group in GATE_SHARED:
        if getattr(a, group) != getattr(b, group):
            raise ConfigError(
                f"quality asks both sides the same, but {group} differs; give {group}=... for both"
            )
    if a.model.vocab != b.model.vocab:
        raise ConfigError(
            "quality needs one tokenizer, but model.vocab differs; compare configurations of one model"
        )


def _refuse_questions(side: Experiment) -> None:
    """Raise ConfigError for a side that the gate cannot ask."""
    refuse_synthetic(side)
    if side.quality.prompts < (fewest := fewest_prompts(side.quality)):
        raise ConfigError(
            f"quality.prompts={side.quality.prompts} can never show that answers are the same; raise it to "
            f"{fewest}, or the margins"
        )
    if drafting := [key for key in getattr(side.engine, "args", {}) if key.startswith("speculative")]:
        raise ConfigError(
            f"engine.args.{drafting[0]}: the quality gate compares no drafted tokens; leave it out"
        )
    if side.time_scale != 1:
        raise ConfigError(
            f"the quality gate asks on the real clock, not at engine.time_scale={side.time_scale:g}; leave "
            "it out"
        )
