"""The dotted keys of the specs, with the type and the default of each."""

import dataclasses
import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

Fields = Mapping[str, Any]
"""Names of a group's keys -> their types."""


class Bare(NamedTuple):
    """A type without its None and without its ranges, and what was taken off."""

    kind: Any
    is_optional: bool
    ranges: tuple[Any, ...]


def bare(kind: Any) -> Bare:
    ranges: tuple[Any, ...] = ()
    is_optional = False
    while True:
        if get_origin(kind) is Annotated:
            kind, *more = get_args(kind)
            ranges += tuple(more)
        elif get_origin(kind) in (Union, types.UnionType):
            others = [member for member in get_args(kind) if member is not types.NoneType]
            is_optional = is_optional or len(others) < len(get_args(kind))
            kind = others[0]
        else:
            return Bare(kind, is_optional, ranges)


def fields_of(kind: Any) -> Fields | None:
    """The keys of a group; None if the type is no group."""
    kind = bare(kind).kind
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
    """The type of a dotted key under `root`; None for an unknown one."""
    kind: Any = root
    for part in key.split("."):
        kind = (fields_of(kind) or {}).get(part)
    return kind


def with_defaults(kind: Any, tree: Any) -> Any:
    """The tree of a spec with the defaults of the keys that it lacks, also in the groups that it has."""
    if get_origin(kind) is list and isinstance(tree, list):
        return [with_defaults(get_args(kind)[0], value) for value in tree]
    fields = fields_of(kind)
    if fields is None or not isinstance(tree, Mapping):
        return tree
    given = {name: with_defaults(fields.get(name), value) for name, value in tree.items()}
    return {**_defaults(bare(kind).kind), **given}


@cache
def _defaults(spec: Any) -> Mapping[str, Any]:
    defaults = {}
    for field in dataclasses.fields(spec):
        if field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
    return {
        name: dataclasses.asdict(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type)
        else value
        for name, value in defaults.items()
    }
