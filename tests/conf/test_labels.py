"""conf.compose: names beside a figure, and external endpoints as far as words say."""

from pathlib import Path

import pytest

from analysis.results.experiment_facts import describe, named
from conf import load
from conf.compose import dump

URL = ["engine=external", "target.urls=[http://x:1]"]


@pytest.mark.parametrize(
    ("words", "label"),
    [
        ([], "chat_5600_140: 5600/140 tokens"),
        (
            ["workload.input_tokens=200", "workload.output_tokens=50"],
            "chat_5600_140 changed: 200/50 tokens",
        ),
        (["workload.input_tokens=5600"], "chat_5600_140: 5600/140 tokens"),
        (["workload.prefix_hit=.5"], "chat_5600_140 changed: 5600/140 tokens, prefix_hit=0.5"),
        (["workload=chat_5600_140_varied"], "chat_5600_140_varied: 5600/140 tokens in the mean"),
        (
            ["workload.output_tokens={kind: mixture, values: [2, 200], weights: [.5, .5]}"],
            "chat_5600_140 changed: 5600/101 tokens in the mean",
        ),
        (["workload.arrivals.kind=constant"], "chat_5600_140: 5600/140 tokens"),
        (["workload.name=mine", "workload.input_tokens=7"], "mine: 7/140 tokens"),
        (["workload=character"], "character: unknown/unknown tokens in the mean"),
    ],
)
def test_a_workload_is_named_with_its_lengths_and_marked_where_it_is_not_its_file(
    words: list[str], label: str
) -> None:
    assert describe(load(words)).load == label


@pytest.mark.parametrize(
    ("words", "name", "gpus"),
    [
        ([], "dp1_tp8_ep8", 8),
        (["layout.replicas_per_node=4", "layout.tensor_parallel=2"], "4 x TP2/EP2", 8),
        (["layout=dp2_tp4_ep4", "layout.expert_parallel=false"], "2 x TP4", 8),
        (["layout=2p1d", "layout.prefill.per_node=1"], "1 x TP2/EP2 prefill + 1 x TP4/EP4 decode", 6),
        (["layout.tensor_parallel=8", "layout.max_num_seqs=64"], "dp1_tp8_ep8", 8),
        (["layout.tensor_parallel=4", "layout.name=mine"], "mine", 4),
    ],
)
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
