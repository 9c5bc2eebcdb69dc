"""Configuration: every file loads, precedence holds, and each wrong word is one clear line."""

from pathlib import Path

import pytest

from conf import ConfigError, load
from conf.load import dump, groups
from conf.schema import SimulatedEngine, VllmEngine

NEEDS = {"engine=external": ["target.urls=[http://127.0.0.1:8000]"]}
WRONG = {
    "slo.ttft_p90=2000": "unknown key 'slo.ttft_p90'; did you mean 'slo.ttft_p90_ms'",
    "sede=3": "unknown key 'sede'; did you mean 'seed'?",
    "workload=chat_5600": "unknown choice 'workload=chat_5600'; did you mean 'chat_5600_140'",
    "slo.ttft_p90_ms=soon": "slo.ttft_p90_ms: Value 'soon' of type 'str' could not be converted to Float",
    "seed=1.5": "seed: Value '1.5' of type 'float' could not be converted to Integer",
    "rate_qps=-1": "rate_qps=-1.0 must be positive",
    "rate_qps=nan": "rate_qps=nan must be positive",
    "slo.tpot_p90_ms=inf": "slo.tpot_p90_ms=inf must be positive and finite",
    "layout.replicas_per_node=2": "needs 16 GPUs per node (2 x TP8) but cluster laptop has 8",
    "layout.tensor_parallel=7": "TP7 does not divide the 64 attention heads",
    "cluster.session=cloud": "Invalid value 'cloud', expected one of",
    "engine=external": "engine=external needs target.urls",
    "engine.kind=vllm": "choose a file with engine=NAME",
    "out=${oc.env:HOME}": "interpolation",
    "sweep": "not of the form key=value",
    "workload.input_tokens.cv=0.5": "kind=fixed has no cv",
    "routing.policy=pow2": "pow2 needs data_path=python_proxy",
}


@pytest.mark.parametrize(
    "word", [f"{group}={choice}" for group, names in groups().items() for choice in names]
)
def test_every_choice_loads_and_survives_a_round_trip(word: str, tmp_path: Path) -> None:
    experiment = load([word, *NEEDS.get(word, [])])
    saved = tmp_path / "config.yaml"
    saved.write_text(dump(experiment))
    assert load(base=saved) == experiment


@pytest.mark.parametrize("word", WRONG)
def test_a_wrong_word_is_one_line(word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load([word])
    assert WRONG[word] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_value_beats_its_file_in_any_order() -> None:
    words = ["slo.ttft_p90_ms=1500", "slo=interactive"]
    for order in (words, words[::-1]):
        slo = load(order).slo
        assert (slo.name, slo.ttft_p90_ms, slo.tpot_p90_ms) == ("interactive", 1500, 50)


def test_the_engine_class_follows_its_kind() -> None:
    assert isinstance(load().engine, SimulatedEngine)
    engine = load(["engine=vllm", "engine.args.max_num_seqs=256"]).engine
    assert isinstance(engine, VllmEngine) and engine.args["max_num_seqs"] == 256


def test_a_saved_tree_takes_new_words(tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text(dump(load(["workload=smoke", "seed=7"])))
    experiment = load(["search=standard", "seed=8"], base=saved)
    assert (experiment.workload.name, experiment.search.name, experiment.seed) == ("smoke", "standard", 8)


@pytest.mark.parametrize("text", ["- a list", "a: [", "", "seed: ${oc.env:HOME}"])
def test_a_broken_saved_tree_is_one_line(text: str, tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(base=saved)
    assert "\n" not in str(caught.value)


def test_every_constant_names_its_source() -> None:
    for name in groups()["model"]:
        step_time = load([f"model={name}"]).model.step_time
        for field in type(step_time).__dataclass_fields__:
            constant = getattr(step_time, field)
            assert constant.source and constant.unit, f"{name}.{field}"
            if constant.low is not None and constant.high is not None:
                assert constant.low <= constant.value <= constant.high, f"{name}.{field}"
