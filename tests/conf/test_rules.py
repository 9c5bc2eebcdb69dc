"""conf.specs.rules: tables name only keys that exist; tests/data/refused_words.yaml has their refusals."""

from pathlib import Path

import pytest

from conf.keys import bare, fields_of
from conf.specs import experiment, planning, workload
from conf.specs.engine import ENGINES
from conf.specs.rules import RELATIONS, TABLE, table
from loadgen.cli import shape_words, words

MODULES = experiment, planning, workload, words, shape_words
SPECS = {name: spec for module in MODULES for name, spec in vars(module).items()}
RULES = [(path, spec) for path in (TABLE, words.RULES) for spec in table(path)]


def is_there(spec: object, key: str) -> bool:
    """True if a dotted key is a field or a property of a spec, or of one of the kinds of an engine."""
    name, _, inner = key.partition(".")
    specs = list(ENGINES.values()) if spec is experiment.Engine else [spec]
    kinds = [fields[name] for each in specs if name in (fields := fields_of(each) or {})]
    if not kinds or not inner:
        return bool(kinds) or any(isinstance(getattr(each, name, None), property) for each in specs)
    return is_there(bare(kinds[0])[0], inner)


@pytest.mark.parametrize(("path", "spec"), RULES, ids=[spec for _, spec in RULES])
def test_every_key_of_a_rule_exists(path: Path, spec: str) -> None:
    also = experiment.Experiment if issubclass(SPECS[spec], words.Command) else SPECS[spec]
    for rule in table(path)[spec]:
        assert set(rule) == {"when", "say"}
        for keys, wanted in rule["when"].items():
            relations = dict(wanted) if isinstance(wanted, dict) else {}
            others = [other for name, other in relations.items() if name != "not" and isinstance(other, str)]
            assert set(relations) <= {*RELATIONS, "not"}
            for key in [*keys.split("|"), *others]:
                assert is_there(SPECS[spec], key) or is_there(also, key), key
