"""Reads `rules.yaml`: refusals of a spec by several of its keys at once, each with its remedy."""

import operator
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "rules.yaml"
RELATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "above": operator.gt,
    "below": operator.lt,
    "at_least": operator.ge,
    "other_than": operator.ne,
    "indivisible_by": operator.mod,
}


class Ruled:
    """Base of a spec that has rules: it is checked when it is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_rules(self)


def check_rules(spec: Any) -> None:
    """Raise ValueError with the reason of the first rule that the spec breaks."""
    for rule in table().get(type(spec).__name__, ()):
        facts = _Facts(spec)
        if all(facts.hold(keys, wanted) for keys, wanted in rule["when"].items()):
            raise ValueError(rule["say"].format_map(facts))


@cache
def table() -> Mapping[str, Any]:
    """The rules of each spec by its name."""
    from conf.io import bounded_yaml  # takes 10 ms, which help need not wait for

    rules: dict[str, Any] = bounded_yaml.read(TABLE.read_text())
    return rules


class _Facts:
    """The attributes of a spec, and the last key that held with its value."""

    __slots__ = ("key", "spec", "value")

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    def __getitem__(self, name: str) -> Any:
        return getattr(self if name in ("key", "value") else self.spec, name)

    def hold(self, keys: str, wanted: Any) -> bool:
        """True if one of the keys is as a rule says; it is then the `key` of the reason."""
        for key in keys.split("|"):
            value = self._at(key)
            if self._fits(value, wanted):
                self.key, self.value = key, value
                return True
        return False

    def _fits(self, value: Any, wanted: Any) -> bool:
        if wanted in ("is set", "is unset"):
            return bool(value) is (wanted == "is set")
        if not isinstance(wanted, dict):
            choices: list[Any] = wanted if isinstance(wanted, list) else [wanted]
            return value in choices
        ((relation, other),) = wanted.items()
        if relation == "not":
            return not self._fits(value, other)
        other = self._at(other) if isinstance(other, str) else other
        return None not in (value, other) and bool(RELATIONS[relation](value, other))

    def _at(self, key: str) -> Any:
        """The value of a dotted key; None where a spec on the way is None or of a kind without the key."""
        value = self.spec
        for name in key.split("."):
            value = getattr(value, name, None)
        return value
