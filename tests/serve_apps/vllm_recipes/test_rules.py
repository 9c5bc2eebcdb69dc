"""serve_apps/vllm_recipes/rules.py: a case for and a case against each rule about a real vLLM."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from conf.specs.rules import table
from serve_apps.vllm_recipes import recipes
from serve_apps.vllm_recipes.rules import RULES
from tests.support.words.recipe_words import NEWEST, experiment, resolve


class Case(NamedTuple):
    """`bad` is refused or noted by the rule with `said` in the line, `good` is neither.

    `changed` are facts of the bad model that no configuration would let through.
    """

    said: str
    bad: Sequence[str]
    good: Sequence[str]
    bad_version: str = NEWEST
    good_version: str = NEWEST
    changed: dict[str, Any] = {}  # noqa: RUF012 - read only


DATA = Path(__file__).parents[2] / "data" / "vllm_rule_cases.yaml"
REFUSED, NOTED = table(RULES).values()
CASES = {name: Case(**row) for name, row in yaml.safe_load(DATA.read_text()).items()}


def test_every_rule_has_a_case_a_reason_and_a_source() -> None:
    assert set(CASES) == REFUSED.keys() ^ NOTED.keys()
    for name, rule in {**REFUSED, **NOTED}.items():
        fact, _, reason = rule["say"].partition(": ")
        assert fact and reason and rule["source"], name
        assert "; " in reason or name in NOTED, name


@pytest.mark.parametrize("name", CASES)
def test_rules_refuse_and_pass(name: str) -> None:
    case = CASES[name]
    asked = experiment(case.bad)
    parts: Any = asked.engine, replace(asked.model, **case.changed), asked.layout
    if name in NOTED:
        line = "\n".join(recipes.resolve(*parts, case.bad_version, asked.hardware).notes)
    else:
        with pytest.raises(ValueError) as refused:  # noqa: PT011  # the message is looked at below
            recipes.resolve(*parts, case.bad_version, asked.hardware)
        line = str(refused.value)
        assert "\n" not in line
    assert case.said in line
    said_of_good = resolve(case.good, case.good_version).notes
    assert not any(case.said in note for note in said_of_good)


def test_the_page_lists_every_rule() -> None:
    page = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text()
    assert not [name for name in CASES if f"`{name}`" not in page]
