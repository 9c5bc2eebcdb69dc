"""Trees of plain values, as YAML has them: a value by its dotted key, one tree over another, differences."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from conf.specs.experiment import Experiment

Tree = Mapping[str, Any]


def value_at(tree: Tree, key: str) -> Any:
    """The value of a dotted key; None if the tree has no such key."""
    value: Any = tree
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def overlaid(tree: Tree, change: Tree) -> dict[str, Any]:
    """The tree with the values of another one over it. Lists are replaced; neither tree is changed."""
    both = {key for key, value in change.items() if isinstance(value, Mapping)} & tree.keys()
    inner = {
        key: overlaid(tree[key], change[key])
        for key in change
        if key in both and isinstance(tree[key], Mapping)
    }
    return {**tree, **change, **inner}


def flat(tree: Tree, above: str = "") -> dict[str, Any]:
    """The values of a nested tree by dotted key."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        values |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return values


def differences(a: Experiment, b: Experiment) -> dict[str, list[Any]]:
    """Dotted keys whose values differ -> the values of A and B; None if one lacks the key."""
    flat_a, flat_b = flat(asdict(a)), flat(asdict(b))
    keys = [*flat_a, *(key for key in flat_b if key not in flat_a)]
    return {key: [flat_a.get(key), flat_b.get(key)] for key in keys if flat_a.get(key) != flat_b.get(key)}
