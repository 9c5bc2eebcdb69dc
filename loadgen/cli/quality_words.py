"""Arguments of the quality gate: its two sides, and the load beside its questions."""

from collections.abc import Sequence
from pathlib import Path

from pyarrow import ArrowException

from analysis.quality.gate import fewest_prompts
from analysis.results.verdicts import StudyVerdict
from conf import ConfigError, Experiment
from conf.compose import dump
from conf.io.one_line import reason
from loadgen.quality import asking
from loadgen.studies import comparison_words, quality_study
from loadgen.studies.comparison_words import Asked

SHARED = ("workload", "quality", "fleet")
"""Groups that decide what both sides are asked."""


def sides(words: Sequence[str], config: Path | None, asked: Asked) -> tuple[Experiment, Experiment]:
    """A and B of the words.

    Raises ConfigError unless there are two files or a difference, and for what the gate cannot ask.
    """
    a, b = comparison_words.sides("quality", words, config, asked)
    _refuse_unlike(a, b)
    for side in (a, b):
        _refuse(side)
    return a, b


def folders(words: Sequence[str]) -> tuple[Path, Path] | None:
    """The two folders of recorded answers among the words; None for other words."""
    found = [Path(word) for word in words if Path(word).is_dir()]
    if not found:
        return None
    if len(found) != 2 or len(words) != 2:
        raise ConfigError(
            "quality of recorded answers takes two folders and nothing else: python -m loadgen quality "
            "runs/NAME/a runs/OTHER/b"
        )
    return found[0], found[1]


def recorded(a: Path, b: Path) -> StudyVerdict:
    """The verdict on the answers in two run folders, the first of which was asked everything twice.

    Raises ConfigError for folders without answers to the same questions.
    """
    try:
        return quality_study.verdict_on_folders(a, b)
    except (OSError, ArrowException, ValueError) as error:
        raise ConfigError(f"cannot compare the answers of {a} and {b}: {reason(error)}") from error


def text(a: Experiment, b: Experiment) -> str:
    """The plan: A's configuration, its differences from B's, and what both are asked."""
    quality, paced = a.quality, asking.gate_pace(a)
    longest_s = asking.longest_s(a, paced)
    lasts = "as long as that takes" if longest_s is None else f"at most {longest_s:.0f} s"
    return "\n".join(
        [
            *(f"# {line}" for line in comparison_words.lines(a, b)),
            dump(a).rstrip(),
            f"# {quality.prompts} prompts of {quality.prompt_tokens} tokens, {quality.answer_tokens} out: "
            "A answers each twice, then B until the verdict is clear",
            f"# questions come {paced.words}: {lasts}, and two deployments",
        ]
    )


def _refuse_unlike(a: Experiment, b: Experiment) -> None:
    """Raise ConfigError if B would not get A's questions and load."""
    for group in SHARED:
        if getattr(a, group) != getattr(b, group):
            why = f"quality asks both sides the same, but {group} differs"
            raise ConfigError(f"{why}; give {group}=... for both")
    if a.model.vocab != b.model.vocab:
        raise ConfigError(
            "quality needs one tokenizer, but model.vocab differs; compare configurations of one model"
        )


def _refuse(asked: Experiment) -> None:
    """Raise ConfigError for a side that the gate cannot ask."""
    asking.refuse_synthetic(asked)
    if asked.quality.prompts < (fewest := fewest_prompts(asked.quality)):
        raise ConfigError(
            f"quality.prompts={asked.quality.prompts} can never show that answers are the same; raise it to "
            f"{fewest}, or the margins"
        )
    if drafting := [key for key in getattr(asked.engine, "args", {}) if key.startswith("speculative")]:
        raise ConfigError(
            f"engine.args.{drafting[0]}: the quality gate compares no drafted tokens; leave it out"
        )
    if asked.time_scale != 1:
        raise ConfigError(
            f"the quality gate asks on the real clock, not at engine.time_scale={asked.time_scale:g}; leave "
            "it out"
        )
