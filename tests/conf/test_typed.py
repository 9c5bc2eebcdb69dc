"""conf.typed: a tree becomes a spec, or each error a line with its key; an editor accepts the same."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import TypeAdapter

from conf import ConfigError, load
from conf.compose import dump
from conf.io import bounded_yaml
from conf.specs.workload import Arrivals
from conf.typed import fits, schema_text
from conf.words import ROOT

TREE = yaml.safe_load(dump(load()))


def changed(folder: Path, **groups: Any) -> Path:
    """A saved experiment with other values."""
    path = folder / "config.yaml"
    path.write_text(
        yaml.safe_dump(
            {**TREE, **{name: TREE[name] | more for name, more in groups.items()}}, sort_keys=False
        )
    )
    return path


def test_every_error_of_a_file_is_said_with_the_file_and_those_of_words_without(tmp_path: Path) -> None:
    saved = changed(
        tmp_path, cluster={"nodes": "two", "recovery_s": -1}, fleet={"actor": 4}, slo={"joint": True}
    )
    with pytest.raises(ConfigError) as refused:
        load(["search.budget_s=0"], saved)
    assert sorted(refused.value.reasons) == [
        f"{saved}: cluster.nodes=two must be a whole number from 1 to 100000",
        f"{saved}: cluster.recovery_s=-1 must be at least 0",
        f"{saved}: slo.joint=true must be a number from 0.5 to 0.999",
        f"{saved}: unknown key 'fleet.actor'; did you mean 'fleet.actors=4'?",
        "search.budget_s=0 must be above 0 and at most 2592000",
    ]


def test_a_word_repairs_a_file(tmp_path: Path) -> None:
    saved = changed(tmp_path, cluster={"nodes": "two"})
    assert load(["cluster.nodes=1"], saved) == load()


@pytest.mark.parametrize("value", ["1", 1.5, True, [1], {"a": 1}])
def test_types_are_strict(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fleet.actors.* must be a whole number from 1 to 10000$"):
        load(base=changed(tmp_path, fleet={"actors": value}))


def test_a_file_with_thousands_of_errors_is_refused_at_once(tmp_path: Path) -> None:
    saved = changed(tmp_path, engine={f"key_{number}": 1 for number in range(2000)})
    with pytest.raises(ConfigError) as refused:
        load(base=saved)
    assert len(refused.value.reasons) < 100


WORDS = [
    "engine=simulated",
    "hardware=mi300x",
    "model.step_time.layer_us.value=3",
    "layout.tensor_parallel=4",
]


def test_wrong_values_anywhere_in_a_file_are_refused_in_our_words(tmp_path: Path) -> None:
    """Thirty files, each with one to four values of other types, some of them with words over it."""
    rng, saved = random.Random(0), tmp_path / "config.yaml"
    for _ in range(30):
        tree = copy.deepcopy(TREE)
        for _ in range(rng.randint(1, 4)):
            group: Any = tree
            while isinstance(inner := group[key := rng.choice(list(group))], dict) and inner:
                if rng.random() < 0.2:
                    break
                group = inner
            group[key] = rng.choice([None, True, -1, 1e308, 10**30, "", "x", [], [[1, "x"]], {"a": {"b": 1}}])
        saved.write_text(yaml.safe_dump(tree, sort_keys=False))
        try:
            load(rng.sample(WORDS, rng.randint(0, 2)), saved)
        except ConfigError as refused:
            for reason in refused.reasons:
                assert "\n" not in reason and "Input should" not in reason and "object has no" not in reason


def test_rules_about_several_keys_wait_until_all_keys_are_known() -> None:
    with pytest.raises(ConfigError) as refused:
        load(["workload=trace", "workload.tracee=a.csv"])
    assert refused.value.reasons == ("unknown key 'workload.tracee'; did you mean 'workload.trace'?",)


def test_numbers_with_an_exponent_are_numbers_and_texts_like_them_stay_texts(tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text(dump(load(["run=12e5", "rate_qps=2e0"])).replace("rate_qps: 2.0", "rate_qps: 2e0"))
    again = load(base=saved)
    assert (again.run, again.rate_qps) == ("12e5", 2.0)


def test_other_readers_of_a_spec_keep_their_own_rules() -> None:
    """The strict rules of a configuration belong to its reader, not to the class."""
    assert fits(Arrivals, {"kind": "poisson"}) and not fits(Arrivals, {"kind": "gamma", "burstiness": "2"})
    assert TypeAdapter(Arrivals).validate_python({"kind": "gamma", "burstiness": "2"}).burstiness == 2


SCHEMA = json.loads(schema_text())
SPECS = {"slo": "Slo", "hardware": "Hardware", "workload": "Workload", "model": "Model", "layout": "Layout"}


def is_valid(tree: object, schema: dict[str, object] = SCHEMA) -> bool:
    return not list(jsonschema.Draft202012Validator(schema).iter_errors(tree))


@pytest.mark.parametrize(
    "words",
    [
        "engine=simulated workload=character",
        "engine=vllm cluster=mi325x_1n",
        "engine=vllm_cpu",
        "engine=vllm_emulated",
        "engine=external target.urls=[http://127.0.0.1:1]",
    ],
)
def test_every_saved_experiment_is_valid(words: str) -> None:
    assert is_valid(yaml.safe_load(dump(load(words.split()))))


@pytest.mark.parametrize("path", [p for group in SPECS for p in ROOT.glob(f"{group}/*.yaml")], ids=str)
def test_every_file_of_a_group_is_valid(path: Path) -> None:
    reference = {"$ref": f"#/$defs/{SPECS[path.parent.name]}", "$defs": SCHEMA["$defs"]}
    assert is_valid(bounded_yaml.read(path.read_text()), reference)


@pytest.mark.parametrize(
    ("group", "changes", "holds"),
    [
        ("slo", {"itl_p99_ms": 80}, True),
        ("slo", {"itl_p99_ms": -1}, False),
        ("slo", {"ttft_p90_ms": 0}, False),
        ("slo", {"ttft": 3}, False),
        ("fleet", {"actors": 0}, False),
        ("fleet", {"actors": 1.5}, False),
        ("engine", {"kind": "vllm"}, False),
        ("workload", {"prompt": "letter"}, False),
    ],
)
def test_a_wrong_key_or_value_is_marked(group: str, changes: dict[str, object], holds: bool) -> None:
    assert is_valid({**TREE, group: TREE[group] | changes}) == holds
