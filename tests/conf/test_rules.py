"""conf.specs.rules: the table of rules names only keys that exist."""

import pytest

from conf.keys import bare, fields_of
from conf.specs import experiment, planning, workload
from conf.specs.engine import ENGINES
from conf.specs.rules import RELATIONS, table

SPECS = {name: spec for module in (experiment, planning, workload) for name, spec in vars(module).items()}


def is_there(spec: object, key: str) -> bool:
    """True if a dotted key is a field or a property of a spec, or of one of the kinds of an engine."""
    name, _, inner = key.partition(".")
    specs = list(ENGINES.values()) if spec is experiment.Engine else [spec]
    kinds = [fields[name] for each in specs if name in (fields := fields_of(each) or {})]
    if not kinds or not inner:
        return bool(kinds) or any(isinstance(getattr(each, name, None), property) for each in specs)
    return is_there(bare(kinds[0])[0], inner)


@pytest.mark.parametrize("spec", table())
def test_every_key_of_a_rule_exists(spec: str) -> None:
    for rule in table()[spec]:
        assert set(rule) == {"when", "say"}
        for keys, wanted in rule["when"].items():
            relations = dict(wanted) if isinstance(wanted, dict) else {}
            others = [other for name, other in relations.items() if name != "not" and isinstance(other, str)]
            assert set(relations) <= {*RELATIONS, "not"}
            assert all(is_there(SPECS[spec], key) for key in [*keys.split("|"), *others]), keys
