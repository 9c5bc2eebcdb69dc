"""Reads tables as `rules.yaml`: refusals of a spec by several of its keys at once, each with its remedy."""

import operator
from collections.abc import Callable, Iterator, Mapping
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
    "begins_with": lambda text, beginnings: str(text).startswith(tuple(beginnings)),
    "contains": lambda text, parts: any(part in str(text) for part in parts),
}


NUMERIC = {"above", "below", "at_least", "indivisible_by"}
"""Relations between numbers: anything else compares with nothing."""


class Ruled:
    """Base of a spec that has rules: it is checked when it is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_rules(self)


def check_rules(spec: Any, path: Path = TABLE, name: str = "") -> None:
    """Raise ValueError with the reason of the first rule of a table that the spec breaks."""
    for reason in broken_rules(spec, path, name):
        raise ValueError(reason)


def broken_rules(spec: Any, path: Path, name: str = "") -> Iterator[str]:
    """The reasons of the rules of a table that the spec breaks; `name` of them is by default its class."""
    for conditions, reason in _rules(name or type(spec).__name__, path):
        held = ""
        for keys, is_as_wanted in conditions:
            held = next((key for key in keys if is_as_wanted(spec, _at(spec, key))), "")
            if not held:
                break
        if held:
            yield reason.format_map(_Facts(spec, held))


@cache
def table(path: Path = TABLE) -> Mapping[str, Any]:
    """The rules of each spec by its name."""
    from conf.io import bounded_yaml  # takes 10 ms, which help need not wait for

    rules: dict[str, Any] = bounded_yaml.read(path.read_text())
    return rules


Test = Callable[[Any, Any], bool]
"""Whether a value of a spec, the first argument, is as a rule says."""


@cache
def _rules(name: str, path: Path) -> list[tuple[list[tuple[list[str], Test]], str]]:
    """The conditions and the reason of each rule of a spec; a condition is of one of several keys."""
    rows = table(path).get(name, ())
    return [
        ([(keys.split("|"), _test(wanted)) for keys, wanted in rule["when"].items()], rule["say"])
        for rule in (rows.values() if isinstance(rows, dict) else rows)
    ]


def _test(wanted: Any) -> Test:
    if wanted in ("is set", "is unset"):
        return lambda _, value: bool(value) is (wanted == "is set")
    if not isinstance(wanted, dict):
        choices = wanted if isinstance(wanted, list) else [wanted]
        # 0 is not false, nor 1 true: a user's argument of vLLM may be either.
        return lambda _, value: any(
            value == choice and isinstance(value, bool) is isinstance(choice, bool) for choice in choices
        )
    ((relation, other),) = wanted.items()
    if relation == "not":
        test = _test(other)
        return lambda spec, value: not test(spec, value)
    compare, is_of_numbers = RELATIONS[relation], relation in NUMERIC

    def compared(spec: Any, value: Any) -> bool:
        bound = _at(spec, other) if isinstance(other, str) else other
        if is_of_numbers and not all(isinstance(each, int | float) for each in (value, bound)):
            return False
        return value is not None and bound is not None and bool(compare(value, bound))

    return compared


def _at(spec: Any, key: str) -> Any:
    """The value of a dotted key; None where a spec on the way is None or of a kind without the key."""
    for name in key.split("."):
        spec = spec.get(name) if isinstance(spec, Mapping) else getattr(spec, name, None)
    return spec


class _Facts:
    """The attributes of a spec, and the last key that is as a rule says with its value."""

    def __init__(self, spec: Any, key: str) -> None:
        self._spec, self._own = spec, {"key": key, "value": _at(spec, key)}

    def __getitem__(self, name: str) -> Any:
        return self._own[name] if name in self._own else getattr(self._spec, name)
