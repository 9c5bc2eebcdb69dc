"""conf.compose: names beside a figure, external endpoints as words say, and what conversations overrule."""

from pathlib import Path

import pytest
import yaml

from analysis.results.experiment_facts import describe, named
from conf import ConfigError, load
from conf.compose import dump
from conf.specs.experiment import Experiment
from loadgen.cli.words import experiment_of as asked

LABELS = yaml.safe_load((Path(__file__).parents[1] / "data" / "labels.yaml").read_text())
URL = ["engine=external", "target.urls=[http://x:1]"]


@pytest.mark.parametrize(("words", "label"), LABELS["workloads"])
def test_a_workload_is_named_with_its_lengths_and_marked_where_it_is_not_its_file(
    words: list[str], label: str
) -> None:
    assert describe(load(words)).load == label


@pytest.mark.parametrize(("words", "name", "gpus"), LABELS["layouts"])
def test_a_layout_is_named_by_its_engines_where_they_are_not_those_of_its_file(
    words: list[str], name: str, gpus: int, tmp_path: Path
) -> None:
    facts = describe(load(words))
    assert (facts.layout, facts.gpus_per_node) == (name, gpus)
    saved = tmp_path / "config.yaml"
    saved.write_text(dump(load(words)))
    assert load(base=saved).layout.name == name
    assert load(["layout.tensor_parallel=1"], saved).layout.name != name


def test_nothing_is_known_of_external_endpoints_that_no_word_said() -> None:
    facts = describe(load(URL))
    assert {facts.model, facts.hardware, facts.layout, facts.routing} == {"unknown"}
    assert facts.gpus_per_node is None and facts.data_path == ""
    assert named("model", facts.model) == "unknown model"
    assert describe(load([*URL, "layout.tensor_parallel=4"])).gpus_per_node is None


def test_what_words_say_of_external_endpoints_is_kept() -> None:
    words = ["model=qwen3_235b_a22b_fp8", "hardware=mi300x", "layout=dp2_tp4_ep4", "routing=round_robin"]
    facts = describe(load([*URL, *words]))
    assert (facts.model, facts.hardware) == ("Qwen3-235B-A22B-Instruct-2507-FP8", "MI300X")
    assert (facts.layout, facts.gpus_per_node, facts.routing) == ("dp2_tp4_ep4", 8, "round_robin")
    assert describe(load([*URL, "model.served_name=llama"])).model == "llama"


def test_a_saved_external_experiment_keeps_what_is_unknown_and_gives_an_engine_of_ours_names(
    tmp_path: Path,
) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text(dump(load([*URL, "hardware=mi300x"])))
    again = load(base=saved)
    assert (again.model.name, again.hardware.name) == ("unknown", "MI300X")
    simulated = load(["engine=simulated"], saved)
    assert simulated.model.name == load().model.name and simulated.hardware.name == "MI300X"
    assert (simulated.layout.name, simulated.routing.name) == ("dp1_tp8_ep8", "leastconn")


@pytest.mark.parametrize("served", ["foo", "tiny-qwen3-moe"])
def test_a_served_name_is_no_name_of_the_model_whose_constants_an_engine_of_ours_has(
    served: str, tmp_path: Path
) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text(dump(load([*URL, f"model.served_name={served}"])))
    assert load(base=saved).model.name == served
    simulated = load(["engine=simulated"], saved).model
    assert (simulated.name, simulated.served_name) == (load().model.name, served)
    saved.write_text(dump(load([*URL, "model=tiny_qwen3_moe", "layout=dp1_tp1"])))
    assert load(["engine=simulated"], saved).model.name == "tiny-qwen3-moe"


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
