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
    "target.urls=[http://[::1]:8000]": "target.urls: the value is not YAML",
    "slo.ttft_p90_ms=[1": "slo.ttft_p90_ms: the value is not YAML",
    "seed=!!python/object:x 3": "seed: the value is not YAML",
    "run=\0": "run: the value is not YAML",
    "workload.input_tokens=5": "workload.input_tokens: Merge error: int",
    "target.urls.0=a": "target.urls.0: Cannot merge",
    "target.urls[0]=a": "set the whole list, target.urls=[...]",
    "cluster.nodes=4": "cluster.nodes=4; use cluster=laptop_4n or cluster.session=fake",
}
BAD_URLS = {
    "http://user:secret@host:80": "no user, password",
    "http://:secret@host": "no user, password",
    "http://host/?key=secret": "no user, password, query",
    "http://host#secret": "query or fragment",
    "ftp://user:secret@host": "no user, password",
    "http://user:secret": "the port of a URL must be a number",
    "http://host:80x": "the port of a URL must be a number",
    "http://host:65536": "the port of a URL must be a number",
    "http://host:0": "the port of a URL must be a number",
    "http://user:secret@[::1": "must be http(s)://host:port",
    "http://user:secret@\u2100": "must be http(s)://host:port",
    "secret": "must be http(s)://host:port",
    "http://": "must be http(s)://host:port",
    "http://a b": "must be http(s)://host:port",
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


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_wrong_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(["engine=external", f'target.urls=["http://127.0.0.1:8000", "{url}"]'])
    assert BAD_URLS[url] in str(caught.value)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_endpoints_may_stand_for_many_nodes_and_get_no_key_unasked() -> None:
    urls = "target.urls=['http://[::1]:8000', 'https://host/prefix']"
    experiment = load(["engine=external", urls, "cluster.nodes=4"])
    assert experiment.target.urls == ["http://[::1]:8000", "https://host/prefix"]
    assert (experiment.cluster.nodes, experiment.target.api_key_env) == (4, "")
    assert load(["cluster.nodes=4", "cluster.session=fake"]).cluster.nodes == 4


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


@pytest.mark.parametrize("group", ["engine", "layout", "target"])
@pytest.mark.parametrize("value", ["simulated", "[1]", "null"])
def test_a_group_of_a_saved_tree_is_a_mapping(group: str, value: str, tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text(f"{group}: {value}")
    with pytest.raises(ConfigError, match=f"{group} is not a mapping of keys to values$"):
        load(base=saved)


BROKEN = ["- a list", "a: [", "", "seed: ${oc.env:HOME}", "out: 2001-99-99", "engine: {kind: [1]}", "1: 2"]


@pytest.mark.parametrize("text", BROKEN)
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
