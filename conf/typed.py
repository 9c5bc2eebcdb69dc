"""The border from plain trees to the specs: pydantic checks types, ranges and keys, and all errors at once.

pydantic is imported where a tree is checked: it takes a tenth of a second, which help need not wait for.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

from conf.io.check import ConfigError, Refusals
from conf.io.one_line import MOST, hint, nearest, one_line
from conf.io.secret import SECRET_SETTING
from conf.keys import Fields, bare, fields_of, keys, type_of
from conf.specs.bounds import METRICS, short_key
from conf.specs.engine import ENGINES
from conf.specs.experiment import Experiment

Spec = TypeVar("Spec")


OPEN = ("target.", "engine.args", "engine.env")
"""Keys whose values may hold a secret, which no message shows."""
WANTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
MOST_ERRORS = 50
"""Most errors of a tree that are said: to find the nearest key takes some 10 ms (our choice)."""


def typed(
    spec: type[Spec],
    tree: Mapping[str, Any],
    root: Fields,
    refusals: Refusals,
    words: Collection[str] = (),
    file: str = "",
) -> Spec:
    """The spec of a tree, whose keys have the types of `root`. Raises ConfigError with all errors.

    Those of `refusals` come first. Rules about several keys are left out where a word was refused: they may
    be broken by its absence. A line on a key begins with the `file`, unless one of `words`, which are keys,
    sets the key or a part of it.
    """
    from pydantic import ValidationError

    def prefix(key: str) -> str:
        of_words = any(f"{word}.".startswith(f"{key}.") or f"{key}.".startswith(f"{word}.") for word in words)
        return f"{file}: " if file and not of_words else ""

    try:
        made = adapter(cast(Any, spec)).validate_json(_json(tree))
        refusals.raise_if_any()
        return cast(Spec, made)
    except ValidationError as error:
        errors = [(_key(each["loc"]), each) for each in error.errors(include_url=False)[:MOST_ERRORS]]
    rules_hold = not refusals.reasons
    lines: dict[str, str] = {}
    for key, each in errors:
        if each["type"] != "missing" and (rules_hold or each["type"] != "value_error"):
            line = _line(root, key, each)
            lines.setdefault(key.partition("[")[0], prefix(key) + line)  # the first of a list is enough
    refusals.reasons += lines.values()
    if missing := [key for key, each in errors if each["type"] == "missing"]:
        are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        names = f"{prefix('')}{', '.join(missing)}"
        refusals.reasons.append(f"{names} {are} missing; give {them}, or start from a whole config.yaml")
    refusals.raise_if_any()
    raise AssertionError("pydantic refused a tree without a reason")


@cache
def adapter(spec: Any) -> Any:
    """The strict type adapter of a spec or of the type of a key."""

    from pydantic import ConfigDict, TypeAdapter, with_config

    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    if not (isinstance(spec, type) and is_dataclass(spec)):
        return TypeAdapter(spec, config=strict)
    made = TypeAdapter(with_config(strict)(spec))
    # The class belongs to other readers too, which build validators of their own.
    del spec.__pydantic_config__  # type: ignore[attr-defined]
    return made


def fits(kind: Any, value: Any) -> bool:
    """True if the type of a key takes a value."""
    from pydantic import ValidationError

    try:
        adapter(kind).validate_json(_json(value))
    except ValidationError:
        return False
    return True


def _json(tree: Any) -> str:
    try:
        return json.dumps(tree, default=str)
    except TypeError as error:
        raise ConfigError("a key is neither text nor number; put it in quotes") from error


def _key(place: Sequence[str | int]) -> str:
    """The dotted key of a place in a tree; pydantic puts an engine's kind behind its key."""
    parts = [part for at, part in enumerate(place) if not (at == 1 and place[0] == "engine")]
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _line(root: Fields, key: str, error: Mapping[str, Any]) -> str:
    if error["type"] == "value_error":
        text = str(error["ctx"]["error"])
        # A spec that stands in several places does not know its key.
        return text if "." not in key or text.startswith(key.partition(".")[0]) else f"{key}: {text}"
    if error["type"] == "unexpected_keyword_argument":
        return _unknown(root, key, error["input"])
    if error["type"] == "json_invalid":
        return "a text has letters that are not Unicode"
    if error["type"] == "union_tag_invalid":
        kind = str(error["ctx"]["tag"])
        near = hint(nearest(kind, list(ENGINES)))
        return f"unknown engine kind '{one_line(kind)}'{near}; available: {', '.join(ENGINES)}"
    return wrong(root, key, error["input"])


def wrong(root: Fields, key: str, value: Any) -> str:
    """One line on a value that the type of its key does not take."""
    kind, ranges = bare(type_of(root, key))
    if get_origin(kind) is list:
        key = key.partition("[")[0]
        kind = bare(type_of(root, key))[0]
    wanted, limits, key = _wanted(kind, key), _range(ranges), short_key(key)
    if value is None:
        return f"{key} has no value; give it {wanted}{limits} or leave it out"
    if isinstance(value, float) and not math.isfinite(value):
        wanted = "finite, " + wanted
    elif limits and fits(kind, value):
        wanted, limits = "", limits.removeprefix(" of").removeprefix(" from").lstrip()
    is_group = fields_of(kind) is not None or get_origin(kind) is dict
    is_whole = not (is_group or isinstance(value, Mapping | list) or key in SAMPLES)
    is_shown = is_whole and not (key.startswith(OPEN) or SECRET_SETTING.search(key))
    said = f"{key}={shown(value)}" if is_shown else key
    return f"{said} must be {wanted}{limits}{hint(_near(kind, key, value))}"


def _wanted(kind: Any, key: str) -> str:
    if (fields := fields_of(kind)) is not None:
        return f"a group of keys: {key}.{next(iter(fields))}=..."
    if get_origin(kind) is dict:
        return f"a mapping of names to values: {key}.NAME=VALUE"
    if get_origin(kind) is list:
        return f"a list: {key}={sample(kind, key)}"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return WANTED.get(kind, "something else")


def _near(kind: Any, key: str, value: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return nearest(str(value), [str(choice) for choice in get_args(kind)])
    return [f"{key}={int(value)}"] if kind is int and isinstance(value, float) and value.is_integer() else []


def _range(ranges: Iterable[Any]) -> str:
    """A range in words: ` above 0 and at most 200`, ` from 1 to 100`, ` of at least 1`."""
    names = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    ends: dict[str, float] = {
        name: end
        for constraint in ranges
        for name in names
        if (end := getattr(constraint, name, None)) is not None
    }
    if set(ends) == {"ge", "le"}:
        return f" from {_number(ends['ge'])} to {_number(ends['le'])}"
    words = " and ".join(f"{names[name]} {_number(end)}" for name, end in ends.items())
    return f" {'of ' if words.startswith('at') else ''}{words}" if words else ""


def _number(end: float) -> str:
    return f"{end:.3g}" if end % 1 else f"{end:.0f}"


FIGURES = (bool, int, float)
MOST_SHOWN = 60
"""Letters of a value that a message shows (our choice)."""
SAMPLES = {"target.urls": "[http://HOST:PORT,...]", "profile_qps": "[[SECOND,QPS],...]"}
"""Examples of values whose type says too little."""


def _unknown(root: Fields, key: str, value: Any) -> str:
    """One line on a key that does not exist, with the nearest that do."""
    above, _, part = key.rpartition(".")
    homes = [kind for kind, spec in ENGINES.items() if above == "engine" and part in (fields_of(spec) or {})]
    if homes:
        return f"{key} belongs to engine={' or '.join(homes)}; leave it out"
    inner = ""
    while isinstance(value, Mapping) and len(value) == 1:
        ((name, value),) = value.items()
        inner += f".{name}"
    names = list(fields_of(type_of(root, above) if above else root) or {})
    near = hint(_meant(root, names, key, inner, value)) or f"; choose from {', '.join(names)}"
    return f"unknown key '{one_line(key + inner, MOST_SHOWN)}'{near}"


def shown(value: Any) -> str:
    return one_line(str(value).lower() if isinstance(value, bool) else str(value), MOST_SHOWN)


def sample(kind: Any, key: str = "") -> str:
    """An example of a value of a type."""
    kind = bare(kind)[0]
    if key in SAMPLES:
        return SAMPLES[key]
    if get_origin(kind) is list:
        return f"[{sample(get_args(kind)[0])},...]"
    if get_origin(kind) is Literal:
        return str(get_args(kind)[0])
    return {bool: "true", int: "1", float: "1.5"}.get(kind, "TEXT")


def _meant(root: Fields, names: list[str], key: str, inner: str, value: Any) -> list[str]:
    """Keys that may be meant: those with this ending, else the nearest in the group, else by the last part.

    A number or a choice, which is never secret, is repeated.
    """
    known, (above, dot, part) = dict(keys(root)), key.rpartition(".")
    near = [name for name in known if name.endswith(f".{key}{inner}")]
    near = near or [f"{above}{dot}{name}{inner}" for name in nearest(part, names)]
    if not near and not above:
        lasts = {name.rpartition(".")[2]: name for name in reversed(known)}
        near = [lasts[last] for last in nearest((key + inner).rpartition(".")[2], list(lasts))]
    kinds = {name: bare(known.get(name))[0] for name in near}
    figures = [name for name, kind in kinds.items() if kind in FIGURES or get_origin(kind) is Literal]
    fitting = [name for name in figures if fits(known[name], value)]
    return [f"{name}={shown(value)}" if name in fitting else name for name in fitting or near][:MOST]


def schema_text() -> str:
    """The schema of a whole config.yaml; each group's own is in its `$defs`."""
    schema = adapter(Experiment).json_schema()
    specs = schema["$defs"]
    specs["VllmEngine"]["properties"]["kind"]["enum"].remove("vllm_emulated")  # that of EmulatedEngine
    limit = specs["Slo"]["properties"]["at_most_ms"]["additionalProperties"]
    specs["Slo"]["patternProperties"] = {rf"^({'|'.join(METRICS)})_p\d+_ms$": limit}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(head | schema, indent=1)
