"""The one border between verdicts and JSON: a dataclass as a tree of plain values, and back.

What is read may be a stranger's: every value is checked against the type of its field, keys without a field
are left out, and a missing key takes the default of its field.
"""

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from analysis.capacity.paired_ratio import Ratio
from analysis.results.locations import RunError
from analysis.results.types.run_verdict import EngineComparison
from conf.io.one_line import one_line

Kind = TypeVar("Kind")
Tree = dict[str, Any]

OURS = "analysis.results.types."
DERIVED: Mapping[type, tuple[str, ...]] = {
    Ratio: ("verdict", "interval"),
    EngineComparison: ("difference_ms", "agrees"),
}
"""Properties that stand in the file beside the fields; they are computed anew when it is read."""
WORDS = {"inf": math.inf, "-inf": -math.inf}
"""JSON has no infinite number: a file holds the word."""


def to_tree(verdict: Any) -> Tree:
    """A dataclass as JSON carries it: keys in the order of its fields, unused optional ones left out."""
    tree: Tree = {}
    marked = type(verdict).__module__.startswith(OURS)
    for field in fields(verdict):
        value = getattr(verdict, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        is_default = type(value) is type(default) and value == default
        if field.metadata.get("inline"):
            tree |= {} if value is None else to_tree(value)
        elif not is_default or field.metadata.get("always", not marked):
            tree[field.name] = _plain(value)
    return tree | {name: getattr(verdict, name) for name in DERIVED.get(type(verdict), ())}


def from_tree(kind: type[Kind], tree: object, source: object) -> Kind:
    """The dataclass `kind` from a tree of `source`, a file or words for the error.

    Raises RunError for a tree that lacks a required key or holds a value of another kind.
    """
    found: Kind = _Reader(source).dataclass(kind, tree, "")
    return found


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_tree(value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


class _Reader:
    """Reads values of one source; `path` is where one stands, for the error."""

    def __init__(self, source: object) -> None:
        self.source = source

    def dataclass(self, kind: Any, tree: object, path: str) -> Any:
        if not isinstance(tree, Mapping):
            raise self._broken(path, tree)
        values: Tree = {}
        lacking = []
        for field in fields(kind):
            hint, place = _hints(kind)[field.name], f"{path}.{field.name}" if path else field.name
            if field.metadata.get("inline"):
                values[field.name] = self._inline(hint, tree, path)
            elif field.name in tree:
                values[field.name] = self._value(hint, tree[field.name], place)
            elif field.default is MISSING and field.default_factory is MISSING:
                lacking.append(field.name)
        if lacking:
            where = f"its {path}" if path else "it"
            raise RunError(f"{self.source} is broken: {where} lacks {', '.join(lacking)}")
        try:
            return kind(**values)
        except ValueError as error:
            raise RunError(f"{self.source} is broken: its {path}: {one_line(str(error))}") from error

    def _inline(self, hint: Any, tree: Mapping[str, Any], path: str) -> Any:
        """The first of the kinds whose required keys all stand in the tree; None where there is none."""
        for kind in filter(is_dataclass, get_args(hint)):
            required = {one.name for one in fields(kind) if one.default is MISSING}
            if required <= tree.keys():
                return self.dataclass(kind, tree, path)
        return None

    def _value(self, hint: Any, value: Any, path: str) -> Any:
        if hint is Any:
            return value
        origin, inner = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            known = next(one for one in inner if one is not type(None))
            return None if value is None else self._value(known, value, path)
        if origin is Literal:
            return self._checked(value in inner, value, path)
        if origin is tuple:
            return self._tuple(inner, value, path)
        if origin is not None and issubclass(origin, Mapping):
            self._checked(isinstance(value, Mapping), value, path)
            return {key: self._value(inner[1], one, f"{path}.{key}") for key, one in value.items()}
        if is_dataclass(hint):
            return self.dataclass(hint, value, path)
        if hint is float:
            value = WORDS.get(value, value) if isinstance(value, str) else value
            return self._checked(isinstance(value, int | float) and not isinstance(value, bool), value, path)
        return self._checked(type(value) is hint, value, path)

    def _tuple(self, inner: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
        self._checked(isinstance(value, list | tuple), value, path)
        if inner[-1] is Ellipsis:
            return tuple(self._value(inner[0], one, path) for one in value)
        self._checked(len(value) == len(inner), value, path)
        return tuple(self._value(hint, one, path) for hint, one in zip(inner, value, strict=True))

    def _checked(self, right: bool, value: Any, path: str) -> Any:
        if not right:
            raise self._broken(path, value)
        return value

    def _broken(self, path: str, value: object) -> RunError:
        place = f"its {path}" if path else "it"
        return RunError(f"{self.source} is broken: {place} is {one_line(str(value), 40)}")
