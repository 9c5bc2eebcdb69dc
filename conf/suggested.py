"""Words that a shell may offer while one is typed: groups with their choices, keys with theirs."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from conf.keys import Fields, bare, fields_of, keys
from conf.specs import planning
from conf.specs.engine import ENGINES
from conf.specs.experiment import Experiment
from conf.words import groups


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
    for name, kind in _keys():
        kind = bare(kind).kind
        if name == key and kind is bool:
            return ["true", "false"]
        if name == key and get_origin(kind) is Literal:
            return [str(choice) for choice in get_args(kind)]
    return []


def _keys() -> Iterator[tuple[str, Any]]:
    """The dotted keys that hold a value, of every kind of engine, with their types."""
    for root in (_root(), *({"engine": engine} for engine in ENGINES.values())):
        yield from ((name, kind) for name, kind in keys(root) if fields_of(kind) is None)


def _root() -> Fields:
    """The first parts of all keys: of an experiment, a plan and a recommendation."""
    kinds = (Experiment, planning.Planning, planning.Recommendation)
    return {name: kind for spec in kinds for name, kind in (fields_of(spec) or {}).items()}
