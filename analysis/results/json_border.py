"""The border between verdicts and JSON: a dataclass as a tree of plain values, and back.

A file may be a stranger's: pydantic checks every value against the type of its field. Keys without a field
are left out, a missing key takes the default of its field, and one error names everything that is wrong.
pydantic takes a tenth of a second to import, so only reading imports it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from analysis.results.locations import RunError
from conf.io.one_line import one_line

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails, SchemaValidator

Kind = TypeVar("Kind")
Tree = dict[str, Any]

WORDS = {"inf": math.inf, "-inf": -math.inf}
"""JSON has no infinite number: a file holds the word."""
STRICT = ("bool", "int", "str", "float")
MOST_ERRORS = 5
"""Errors of a file that are named; the rest is counted (our choice)."""


def to_tree(verdict: Any) -> Tree:
    """A dataclass as JSON carries it: every field under its name; infinite numbers are words, NaN is null."""
    return {field.name: finite(getattr(verdict, field.name)) for field in fields(verdict)}


def json_line(verdict: Any) -> str:
    """A dataclass as one line of JSON."""
    return json.dumps(to_tree(verdict))


def finite(value: Any) -> Any:
    """A value as JSON carries it: NaN (unknown) is null, infinite numbers are the words "inf" and "-inf"."""
    if is_dataclass(value):
        return to_tree(value)
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def from_tree(kind: type[Kind], tree: object, source: object) -> Kind:
    """The dataclass `kind` from a tree of `source`, a file or words for the error.

    Raises RunError, in one line, for a tree that lacks required keys or holds values of other kinds.
    """
    from pydantic_core import ValidationError

    try:
        verdict: Kind = _validator(cast(Any, kind)).validate_python(tree)
        return verdict
    except ValidationError as error:
        details = error.errors(include_url=False)
    errors = list(dict.fromkeys(map(_wrong, details)))
    more = [f"and {len(errors) - MOST_ERRORS} more"] if len(errors) > MOST_ERRORS else []
    raise RunError(f"{source} is broken: {'; '.join([*errors[:MOST_ERRORS], *more])}")


@cache
def _validator(kind: Any) -> "SchemaValidator":
    """pydantic's strict reader of a dataclass; JSON's lists are tuples, its words infinite numbers."""
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator

    return SchemaValidator(_strict(TypeAdapter(kind).core_schema))


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # The configuration's reader leaves its own strictness on the specs.
    schema = {key: _strict(each) for key, each in schema.items() if key not in ("serialization", "config")}
    if schema.get("type") in STRICT:
        schema["strict"] = True
    if schema.get("type") not in ("float", "any"):
        return schema
    function = {"type": "no-info", "function": lambda value: _with_infinite(value)}
    return {"type": "function-before", "function": function, "schema": schema}


def _with_infinite(value: Any) -> Any:
    """A value of a number's field, or of a field of any kind, with infinite numbers for their words."""
    if isinstance(value, str):
        return WORDS.get(value, value)
    if isinstance(value, Mapping):
        return {key: _with_infinite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with_infinite(each) for each in value)
    return value


def _wrong(detail: "ErrorDetails") -> str:
    """One error in words: where it is, and what is there."""
    place = ".".join(map(str, detail["loc"]))
    if detail["type"] == "missing":
        return f"its {place} is missing"
    where = f"its {place}" if place else "it"
    if detail["type"] == "value_error":
        return f"{where}: {one_line(str(detail['ctx']['error']))}"
    return f"{where} is {one_line(str(detail['input']), 40)}"
