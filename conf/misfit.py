"""Messages for a value that does not fit the type of its key, and for an unknown key."""

import dataclasses
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from conf.io.nearest import MOST, hint, nearest
from conf.io.one_line import one_line
from conf.io.secret import SECRET_SETTING

Fields = Mapping[str, Any]
"""Names of a group's keys -> their types."""
UNSAID = object()
MOST_SHOWN = 60
"""Letters of a value that a message shows (our choice)."""
OPEN = ("target.", "engine.args", "engine.env")
"""Keys whose values may hold a secret, which no message shows."""
WANTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
SAMPLES = {"target.urls": "[http://HOST:PORT,...]", "profile_qps": "[[SECOND,QPS],...]"}
"""Examples of values whose type says too little."""
TRUTHS = ("true", "false", "yes", "no", "on", "off", "y", "n", "1", "0")


def fields_of(kind: Any) -> Fields | None:
    """The keys of a group; None if the type is no group."""
    kind, _ = _plain(kind)
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


def is_text(root: Fields, key: str) -> bool:
    """True for a dotted key under `root` whose value is a text."""
    return _plain(type_of(root, key))[0] is str


def misfit(kind: Any, value: Any, key: str) -> str:
    """One line on why a value (of plain types) does not fit the key; empty if it fits."""
    kind, optional = _plain(kind)
    if value is None and optional:
        return ""
    fields, inner = fields_of(kind), get_args(kind)
    if fields is not None:
        return _group_misfit(fields, value, key)
    if get_origin(kind) is dict:
        if not isinstance(value, Mapping):
            return f"{key} is a mapping of names to values; set one of them: {key}.NAME=VALUE"
        return _first(misfit(inner[1], one, f"{key}.{name}") for name, one in value.items())
    if get_origin(kind) is list:
        nested = get_origin(inner[0]) is list
        if not isinstance(value, list | tuple) or (
            nested and not all(isinstance(one, list) for one in value)
        ):
            return f"{key} must be a list{' of lists' if nested else ''}: {key}={_sample(kind, key)}"
        return _first(misfit(inner[0], one, f"{key}[{place}]") for place, one in enumerate(value))
    return "" if kind is Any or _fits(kind, value) else _wrong(kind, value, key)


def unknown(root: Fields, key: str, value: Any = UNSAID) -> str:
    """One line on an unknown dotted key under `root`, with the nearest known one; empty if it exists."""
    at: Fields | None = root
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if at is None:
            above = ".".join(parts[:depth])
            kind = _plain(dict(keys(root))[above])[0]
            if kind is Any or get_origin(kind) is dict:
                return ""
            return f"{above} has no keys of its own; set it whole: {above}={_sample(kind, above)}"
        if part not in at:
            near = hint(_meant(root, parts, depth, value))
            return f"unknown key '{one_line(key, MOST_SHOWN)}'{near or _beside(at)}"
        at = fields_of(at[part])
    return ""


def _meant(root: Fields, parts: list[str], depth: int, value: Any) -> list[str]:
    """Keys that may be meant: those with this ending, else the nearest in the group, else anywhere."""
    known, key = dict(keys(root)), ".".join(parts)
    above = "".join(f"{part}." for part in parts[:depth])
    beside = [name for name in known if name.startswith(above) and "." not in name.removeprefix(above)]
    whole = [name for name in known if name.endswith(f".{key}")]
    near = [name for name in whole if _setting(known[name], name, value)] or whole
    if not near:
        tail = "".join(f".{part}" for part in parts[depth + 1 :])
        beside = [name.removeprefix(above) for name in beside]
        near = [above + name + tail for name in nearest(parts[depth], beside)]
    if not near and (rest := key.partition(".")[2]) in known:
        near = [rest]
    if not near and not depth:
        near = nearest(key, list(known)) or _by_last(parts[-1], list(known))
    said = [(_setting(known[name], name, value) or name) if name in known else name for name in near]
    return sorted(said, key=lambda name: "=" not in name)[:MOST]


def _by_last(part: str, known: Sequence[str]) -> list[str]:
    """The keys whose last part is nearest."""
    lasts = nearest(part, list(dict.fromkeys(name.rpartition(".")[2] for name in known)))
    return [name for last in lasts for name in known if name.rpartition(".")[2] == last]


def _beside(fields: Fields) -> str:
    return f"; choose from {', '.join(fields)}"


def _setting(kind: Any, key: str, value: Any) -> str:
    """The key with the value, or one of a group's keys that can have it; empty if none can."""
    if (fields := fields_of(kind)) is not None:
        figures = {name: one for name, one in fields.items() if _is_figure(one)}
        unset = value is None or value is UNSAID
        return "" if unset else _first(_setting(one, f"{key}.{name}", value) for name, one in figures.items())
    if value is UNSAID:
        return key
    if misfit(kind, value, key):
        return ""
    return f"{key}={_text(value)}" if _is_figure(kind) and not SECRET_SETTING.search(key) else key


def _is_figure(kind: Any) -> bool:
    """True for a type whose values are numbers or choices, which are never secret."""
    kind, _ = _plain(kind)
    return kind in (bool, int, float) or get_origin(kind) is Literal


def _text(value: Any) -> str:
    return one_line(str(value).lower() if isinstance(value, bool) else str(value), MOST_SHOWN)


def _group_misfit(fields: Fields, value: Any, key: str) -> str:
    if not isinstance(value, Mapping):
        such = _setting(fields, key, value) or f"{key}.{next(iter(fields))}=..."
        return f"{key} is a group of keys; set one of them, such as {such}"
    within = f"{key}." if key else ""
    for name, one in value.items():
        if name not in fields:
            near = [within + known for known in nearest(str(name), list(fields))]
            return f"unknown key '{within}{one_line(str(name), MOST_SHOWN)}'{hint(near) or _beside(fields)}"
        if why := misfit(fields[name], one, within + name):
            return why
    return ""


def _wrong(kind: Any, value: Any, key: str) -> str:
    if value is None:
        return f"{key} has no value; give it {_wanted(kind)} or leave it out"
    shown = (
        not key.startswith(OPEN) and not isinstance(value, Mapping | list) and not SECRET_SETTING.search(key)
    )
    said = f"{key}={_text(value)}" if shown else key
    near = (
        nearest(str(value), [str(choice) for choice in get_args(kind)]) if get_origin(kind) is Literal else []
    )
    if kind is int and isinstance(value, float) and value.is_integer():
        near = [f"{key}={int(value)}"]
    return f"{said} must be {_wanted(kind)}{hint(near)}"


def _wanted(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return WANTED.get(kind, "something else")


def _sample(kind: Any, key: str = "") -> str:
    kind, _ = _plain(kind)
    if key in SAMPLES:
        return SAMPLES[key]
    if get_origin(kind) is list:
        (inner,) = get_args(kind)
        return f"[{_sample(inner)},...]"
    if get_origin(kind) is Literal:
        return str(get_args(kind)[0])
    return {bool: "true", int: "1", float: "1.5"}.get(kind, "TEXT")


def _fits(kind: Any, value: Any) -> bool:
    """True if a value is of a plain type, or a text that parses as one."""
    if value is None or isinstance(value, Mapping | list | tuple):
        return False
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind is str:
        return True
    if kind is bool:
        return isinstance(value, bool | int) or str(value).lower() in TRUTHS
    if isinstance(value, bool) or (kind is int and isinstance(value, float)):
        return False
    try:
        kind(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _plain(kind: Any) -> tuple[Any, bool]:
    """A type without its None, and True if it had one."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind, False
    others = [one for one in get_args(kind) if one is not types.NoneType]
    return others[0], len(others) < len(get_args(kind))


def _first(lines: Iterator[str]) -> str:
    return next((line for line in lines if line), "")
