"""Lines on keys that do not exist, with the nearest ones that do."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin

from conf.io.nearest import MOST, hint, nearest
from conf.io.one_line import one_line
from conf.io.secret import SECRET_SETTING
from conf.keys import Fields, bare, fields_of, keys

UNSAID = object()
MOST_SHOWN = 60
"""Letters of a value that a message shows (our choice)."""
SAMPLES = {"target.urls": "[http://HOST:PORT,...]", "profile_qps": "[[SECOND,QPS],...]"}
"""Examples of values whose type says too little."""
Fits = Callable[[Any, Any], bool]
"""True if a type takes a value."""


def unknown(root: Fields, key: str, fits: Fits, value: Any = UNSAID) -> str:
    """One line on an unknown dotted key under `root`, with the nearest known one; empty if it exists."""
    fields: Fields | None = root
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if fields is None:
            above = ".".join(parts[:depth])
            kind = bare(dict(keys(root))[above]).kind
            if kind is Any or get_origin(kind) is dict:
                return ""
            return f"{above} has no keys of its own; set it whole: {above}={sample(kind, above)}"
        if part not in fields:
            near = hint(_meant(root, parts, depth, value, fits)) or f"; choose from {', '.join(fields)}"
            return f"unknown key '{one_line(key, MOST_SHOWN)}'{near}"
        fields = fields_of(fields[part])
    return ""


def setting(kind: Any, key: str, value: Any, fits: Fits) -> str:
    """The key with the value, or one of a group's keys that can have it; empty if none can."""
    if (fields := fields_of(kind)) is not None:
        if value is None or value is UNSAID:
            return ""
        inner = (
            setting(fields[name], f"{key}.{name}", value, fits) for name in fields if is_figure(fields[name])
        )
        return next(filter(None, inner), "")
    if value is UNSAID:
        return key
    if not fits(kind, value):
        return ""
    return f"{key}={shown(value)}" if is_figure(kind) and not SECRET_SETTING.search(key) else key


def is_figure(kind: Any) -> bool:
    """True for a type whose values are numbers or choices, which are never secret."""
    kind = bare(kind).kind
    return kind in (bool, int, float) or get_origin(kind) is Literal


def shown(value: Any) -> str:
    return one_line(str(value).lower() if isinstance(value, bool) else str(value), MOST_SHOWN)


def sample(kind: Any, key: str = "") -> str:
    """An example of a value of a type."""
    kind = bare(kind).kind
    if key in SAMPLES:
        return SAMPLES[key]
    if get_origin(kind) is list:
        return f"[{sample(get_args(kind)[0])},...]"
    if get_origin(kind) is Literal:
        return str(get_args(kind)[0])
    return {bool: "true", int: "1", float: "1.5"}.get(kind, "TEXT")


def _meant(root: Fields, parts: list[str], depth: int, value: Any, fits: Fits) -> list[str]:
    """Keys that may be meant: those with this ending, else the nearest in the group, else anywhere."""
    known, key = dict(keys(root)), ".".join(parts)
    above = "".join(f"{part}." for part in parts[:depth])
    whole = [name for name in known if name.endswith(f".{key}")]
    near = [name for name in whole if setting(known[name], name, value, fits)] or whole
    if not near:
        tail = "".join(f".{part}" for part in parts[depth + 1 :])
        within = [name.removeprefix(above) for name in known if name.startswith(above)]
        near = [above + name + tail for name in nearest(parts[depth], [n for n in within if "." not in n])]
    if not near and (rest := key.partition(".")[2]) in known:
        near = [rest]
    if not near and not depth:
        near = nearest(key, list(known)) or _by_last(parts[-1], list(known))
    settings = [(setting(known[name], name, value, fits) or name) if name in known else name for name in near]
    return sorted(settings, key=lambda name: "=" not in name)[:MOST]


def _by_last(part: str, known: Sequence[str]) -> list[str]:
    """The keys whose last part is nearest."""
    lasts = nearest(part, list(dict.fromkeys(name.rpartition(".")[2] for name in known)))
    return [name for last in lasts for name in known if name.rpartition(".")[2] == last]
