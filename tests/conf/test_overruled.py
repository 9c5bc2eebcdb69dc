"""conf.compose: what conversations say themselves is refused beside them, and read again as saved."""

from pathlib import Path

import pytest

from conf import ConfigError, load
from conf.compose import dump
from conf.specs.experiment import Experiment
from loadgen.cli.words import experiment_of as asked

CHATS = "workload=character"
BESIDE = [
    ("workload.input_tokens.mean=3000", "max_prompt_tokens"),
    ("workload.input_tokens.kind=fixed", "max_prompt_tokens"),
    ("workload.input_tokens={mean: 3000, kind: conversation}", "max_prompt_tokens"),
    ("workload.output_tokens.mean=70", "answer_tokens.mean"),
    ("workload.prefix_hit=.5", "system_tokens and character_tokens.mean"),
    ("workload.session_hit=.5", "turns and truncation"),
    ("workload.sessions=100", "turns, the messages of a session"),
]


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    """That of a run of conversations, with the means that they came to."""
    return asked("sweep", [CHATS], None)


@pytest.fixture(scope="module")
def saved(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its config.yaml."""
    path = tmp_path_factory.mktemp("run") / "config.yaml"
    path.write_text(dump(experiment))
    return path


@pytest.mark.parametrize(("word", "instead"), BESIDE)
def test_a_word_that_conversations_overrule_is_refused_and_their_own_named(
    word: str, instead: str, saved: Path
) -> None:
    key = ".".join(word.partition("=")[0].split(".")[:2])
    for words, base in (([CHATS], None), ([], saved)):
        with pytest.raises(ConfigError) as refused:
            load([*words, word], base)
        assert str(refused.value).startswith(f"{key}: conversations ")
        assert f"or set workload.conversations.{instead}" in str(refused.value)


@pytest.mark.parametrize(
    "word", ["workload.input_tokens.kind=conversation", "workload.prefix_hit=0", "workload.sessions=0"]
)
def test_a_word_that_says_what_is_so_is_taken(word: str) -> None:
    assert load([CHATS, word]) == load([CHATS])


def test_without_conversations_the_same_words_rule() -> None:
    fixed = [f"workload.{name}_tokens={{kind: fixed, mean: 50}}" for name in ("input", "output")]
    workload = load([CHATS, "workload.conversations=null", *fixed, "workload.prefix_hit=.5"]).workload
    assert (workload.input_tokens.mean, workload.prefix_hit) == (50, 0.5)


def test_a_saved_experiment_with_its_means_is_read_again(saved: Path, experiment: Experiment) -> None:
    assert experiment.workload.input_tokens.mean > 5000
    assert load(base=saved) == experiment == asked("sweep", [], saved)
    shorter = asked("sweep", ["workload.conversations.max_prompt_tokens=4096"], saved)
    assert shorter.workload.input_tokens.mean < experiment.workload.input_tokens.mean
