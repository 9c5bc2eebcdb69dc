"""Dotted keys: of the specs, with types and defaults, of plain trees, and those that a shell may offer."""

import dataclasses
import types
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache, reduce
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from conf.specs import planning
from conf.specs.engine import ENGINES
from conf.specs.experiment import Experiment
from conf.words import groups

Fields = Mapping[str, Any]
"""Names of a group's keys -> their types."""


def bare(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without its None and without its ranges, and these ranges."""
    ranges: tuple[Any, ...] = ()
    while True:
        if get_origin(kind) is Annotated:
            kind, *more = get_args(kind)
            ranges += tuple(more)
        elif get_origin(kind) in (Union, types.UnionType):
            kind = next(member for member in get_args(kind) if member is not types.NoneType)
        else:
            return kind, ranges


def fields_of(kind: Any) -> Fields | None:
    """The keys of a group; None if the type is no group."""
    kind = bare(kind)[0]
    if isinstance(kind, Mapping):
        return kind
    if not dataclasses.is_dataclass(kind):
        return None
    return {field.name: field.type for field in dataclasses.fields(kind)}


def keys(fields: Fields, within: str = "") -> Iterator[tuple[str, Any]]:
    """All dotted keys of a tree of groups with their types, groups before what they hold."""
    for name, kind in fields.items():
        yield within + name, kind
        yield from keys(fields_of(kind) or {}, f"{within}{name}.")


def type_of(root: Fields, key: str) -> Any:
    """The type of a dotted key under `root`, which may end inside a list or a mapping; None if unknown."""
    kind: Any = root
    for part in key.replace("[", ".[").split("."):
        kind = bare(kind)[0]
        fields = fields_of(kind)
        kind = fields.get(part) if fields is not None else (get_args(kind) or (None,))[-1]
    return kind


def with_defaults(kind: Any, tree: Any) -> Any:
    """The tree of a spec with the defaults of the keys that it lacks, also in the groups that it has."""
    if get_origin(kind) is list and isinstance(tree, list):
        return [with_defaults(get_args(kind)[0], value) for value in tree]
    fields = fields_of(kind)
    if fields is None or not isinstance(tree, Mapping):
        return tree
    given = {name: with_defaults(fields.get(name), value) for name, value in tree.items()}
    return {**_defaults(bare(kind)[0]), **given}


@cache
def _defaults(spec: Any) -> Mapping[str, Any]:
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(spec):
        make: Any = field.default_factory
        value = field.default if make is dataclasses.MISSING else make()
        if value is not dataclasses.MISSING:
            is_group = dataclasses.is_dataclass(value) and not isinstance(value, type)
            defaults[field.name] = asdict(value) if is_group else value
    return defaults


Tree = Mapping[str, Any]


def value_at(tree: Tree, key: str) -> Any:
    """The value of a dotted key; None if the tree has no such key."""
    value: Any = tree
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def overlaid(tree: Tree, change: Tree) -> dict[str, Any]:
    """The tree with the values of another one over it. Lists are replaced; neither tree is changed."""
    both = {key for key in change if isinstance(change[key], Mapping) and isinstance(tree.get(key), Mapping)}
    return {**tree, **change, **{key: overlaid(tree[key], change[key]) for key in both}}


def flat(tree: Tree, above: str = "") -> dict[str, Any]:
    """The values of a nested tree by dotted key."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        values |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return values


def unflattened(values: Tree) -> dict[str, Any]:
    """The nested tree of values by dotted key."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        tree = overlaid(tree, reduce(lambda inner, part: {part: inner}, reversed(key.split(".")), value))
    return tree


def differences(a: Experiment, b: Experiment) -> dict[str, list[Any]]:
    """Dotted keys whose values differ -> the values of A and B; None if one lacks the key."""
    flat_a, flat_b = flat(asdict(a)), flat(asdict(b))
    keys = [*flat_a, *(key for key in flat_b if key not in flat_a)]
    return {key: [flat_a.get(key), flat_b.get(key)] for key in keys if flat_a.get(key) != flat_b.get(key)}


def suggested(begun: str) -> list[str]:
    """Words that begin as `begun` does: groups and plain keys first, dotted keys once a letter is typed."""
    key, equals, _ = begun.partition("=")
    if equals:
        offers = [f"{key}={choice}" for choice in _choices(key)]
    else:
        plain = [f"{name}=" for name, kind in _root().items() if fields_of(kind) is None]
        dotted = [f"{name}=" for name, _ in _keys() if "." in name] if begun else []
        offers = [f"{group}=" for group in groups()] + plain + dotted
    return [word for word in dict.fromkeys(offers) if word.startswith(begun)]


def _choices(key: str) -> list[str]:
    """The files of a group, or the values of a key that has few."""
    if key in groups():
        return groups()[key]
    kind = bare(dict(_keys()).get(key))[0]
    if kind is bool:
        return ["true", "false"]
    return [str(choice) for choice in get_args(kind)] if get_origin(kind) is Literal else []


def _keys() -> Iterator[tuple[str, Any]]:
    """The dotted keys that hold a value, of every kind of engine, with their types."""
    for root in (_root(), *({"engine": engine} for engine in ENGINES.values())):
        yield from ((name, kind) for name, kind in keys(root) if fields_of(kind) is None)


def _root() -> Fields:
    """The first parts of all keys: of an experiment, a plan and a recommendation."""
    kinds = (Experiment, planning.Planning, planning.Recommendation)
    return {name: kind for spec in kinds for name, kind in (fields_of(spec) or {}).items()}
