"""conf.typed: what an editor accepts is what `conf.load` accepts, as far as single keys go."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from conf import load
from conf.compose import dump
from conf.io import bounded_yaml
from conf.typed import schema_text
from conf.words import ROOT

SCHEMA = json.loads(schema_text())
SPECS = {"slo": "Slo", "hardware": "Hardware", "workload": "Workload", "model": "Model", "layout": "Layout"}
TREE = yaml.safe_load(dump(load(["workload=character"])))


def is_valid(tree: object, schema: dict[str, object] = SCHEMA) -> bool:
    return not list(jsonschema.Draft202012Validator(schema).iter_errors(tree))


@pytest.mark.parametrize("engine", ["simulated", "vllm", "vllm_cpu", "vllm_emulated", "external"])
def test_every_saved_experiment_is_valid(engine: str) -> None:
    urls = ["target.urls=[http://127.0.0.1:1]"] if engine == "external" else []
    machines = ["cluster=mi325x_1n"] if engine == "vllm" else []
    assert is_valid(yaml.safe_load(dump(load([f"engine={engine}", *urls, *machines]))))


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
