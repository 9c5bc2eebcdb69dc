"""conf.specs.rules: tables name only keys that exist; tests/data/refused_words.yaml has their refusals."""

from collections.abc import Mapping
from pathlib import Path
from typing import get_origin

import pytest

from conf.keys import bare, fields_of
from conf.specs import experiment, planning, workload
from conf.specs.engine import ENGINES
from conf.specs.rules import RELATIONS, TABLE, table
from loadgen.cli import shape_words, words
from serve_apps.vllm_recipes import rules as recipes
from serve_apps.vllm_recipes.vllm_flags import unread

MODULES = experiment, planning, workload, words, shape_words
SPECS = {name: spec for module in MODULES for name, spec in vars(module).items()}
SPECS |= dict.fromkeys(table(recipes.RULES), recipes.VllmDeployment)
RULES = [(path, spec) for path in (TABLE, words.RULES, recipes.RULES) for spec in table(path)]


def is_there(spec: object, key: str) -> bool:
    """True if a dotted key is a field or a property of a spec, or of one of the kinds of an engine.

    An argument is one of a vLLM that was read; other mappings have any key.
    """
    name, _, inner = key.partition(".")
    specs = list(ENGINES.values()) if spec in (experiment.Engine, experiment.VllmEngine) else [spec]
    kinds = [fields[name] for each in specs if name in (fields := fields_of(each) or {})]
    properties = [own for each in specs if isinstance(own := getattr(each, name, None), property)]
    kinds += [own.fget.__annotations__["return"] for own in properties]
    if not kinds or not inner:
        return bool(kinds)
    if get_origin(kinds[0]) is Mapping:
        return name != "args" or not unread([inner])
    return is_there(bare(kinds[0])[0], inner)


@pytest.mark.parametrize(("path", "spec"), RULES, ids=[spec for _, spec in RULES])
def test_every_key_of_a_rule_exists(path: Path, spec: str) -> None:
    also = experiment.Experiment if issubclass(SPECS[spec], words.Command) else SPECS[spec]
    rows = table(path)[spec]
    for rule in rows.values() if isinstance(rows, dict) else rows:
        assert set(rule) - {"source"} == {"when", "say"}
        for keys, wanted in rule["when"].items():
            relations = dict(wanted) if isinstance(wanted, dict) else {}
            others = [other for name, other in relations.items() if name != "not" and isinstance(other, str)]
            assert set(relations) <= {*RELATIONS, "not"}
            for key in [*keys.split("|"), *others]:
                assert is_there(SPECS[spec], key) or is_there(also, key), key
