"""The two sides of `compare` and `quality`: from words or saved configurations, what they share, the plan."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from conf import ConfigError, Experiment
from conf.compose import dump
from conf.keys import differences
from loadgen.cli.words import checked_experiment
from loadgen.studies import comparison
from loadgen.studies.comparison import OF_BOTH
from loadgen.studies.gate_questions import gate_pace

USAGE = (
    "{verb} takes two config.yaml of runs, or words for one side: "
    "python -m loadgen {verb} a.layout=dp1_tp8_ep8 b.layout=dp2_tp4_ep4"
)
GATE_SHARED = ("workload.", "quality.", "fleet.", "model.vocab")
"""Keys that decide what both sides of the quality gate are asked, and what its tokens mean."""


def compared(words: Sequence[str], config: Path | None) -> tuple[Experiment, Experiment]:
    """A and B of a comparison, with one seed.

    Raises ConfigError unless there are two files or a difference, and if B cannot get A's requests.
    """
    a, b = _sides("compare", words, config)
    if apart := comparison.unlike(a, b):
        raise ConfigError(
            f"compare sends B the requests of A, but {apart}; give both sides the same, or measure each by "
            "sweep matrix.KEY=[A,B]"
        )
    return a, b


def gate_sides(words: Sequence[str], config: Path | None) -> tuple[Experiment, Experiment]:
    """A and B of the quality gate. Raises ConfigError unless there are two files or a difference."""
    a, b = _sides("quality", words, config)
    if apart := [key for key in differences(a, b) if key.startswith(GATE_SHARED)]:
        raise ConfigError(f"quality asks both sides the same, but {apart[0]} differs; give both the same")
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
    both, sides = [word for word in words if not word.startswith(("a.", "b."))], []
    for side, base in zip("ab", bases, strict=True):
        # The words of the side itself win.
        own = [word.removeprefix(f"{side}.") for word in words if word.startswith(f"{side}.")]
        keys = {word.partition("=")[0] for word in own}
        shared = [word for word in both if word.partition("=")[0] not in keys]
        sides.append(checked_experiment(verb, [*shared, *own], base))
    a, b = sides
    # The name in a file is that of the run it comes from.
    name = a.run if any(word.startswith("run=") for word in words) else None
    a, b = replace(a, run=name), replace(b, run=name, seed=a.seed, out=a.out)
    if not differences(a, b):
        raise ConfigError(f"A and B are the same; {usage}")
    return a, b


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
    # A is asked everything twice.
    lasts = f"at most {3 * quality.prompts / pace.per_s:.0f} s" if pace.per_s else "as long as that takes"
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
