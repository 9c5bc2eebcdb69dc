"""Values of words: `slo.ttft_p90_ms=1500` becomes a tree of plain values that a configuration takes."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import reduce
from typing import Any, NamedTuple

import yaml

from conf import constants
from conf.io import bounded_yaml
from conf.io.check import ConfigError, Refusals
from conf.keys import Fields, bare, type_of
from conf.specs.bounds import LIMITS, METRICS, column, limit_of
from conf.specs.request_sizes import Lengths
from conf.words import key_and_value, refuse_twice

LIST = "slo.bounds"
SAMPLE = "slo.bounds=[{metric: ttft, quantile: .9, ms: 2000}, {metric: itl, quantile: .99, ms: 80}]"
_OWN = {column(limit) for limit in LIMITS}
"""Keys that the spec has as they are typed."""
_SHORT = re.compile(rf"((?:{'|'.join(METRICS)})_p\d+)_ms")


def spelled(words: Sequence[str], refusals: Refusals) -> list[str]:
    """The words with each short one as the key of the spec that it sets.

    A list of bounds that is none, or that stands beside other bounds, is left out and refused.
    """
    others = [word for word in words if not word.startswith(f"{LIST}=")]
    if are_listed(words):
        also_set = [word.partition("=")[0] for word in others if _SHORT.search(word.partition("=")[0])]
        refusals.reasons += [f"{LIST} and {key} set the same; leave one of them out" for key in also_set[:1]]
        with refusals.collected():
            bounds = _listed(next(word for word in words if word not in others))
            refuse_twice(bounds, refusals)
            others += bounds * (not also_set)
    return [_spelled(word) for word in others]


def are_listed(words: Sequence[str]) -> bool:
    """True if a word has the whole list of bounds."""
    return any(word.startswith(f"{LIST}=") for word in words)


def nested(slo: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of a file's `slo` with short keys moved to where the spec has them."""
    short = {key: limit for key in slo if (limit := _limit(str(key)))}
    rest = {key: value for key, value in slo.items() if key not in short}
    others = rest.get("at_most_ms", {})
    if not short or not isinstance(others, dict):
        return rest
    return rest | {"at_most_ms": others | {limit: slo[key] for key, limit in short.items()}}


def _limit(key: str) -> str:
    """The bound that a short key of `slo` names; empty for every other key."""
    match = _SHORT.fullmatch(key)
    return match[1] if match and key not in _OWN else ""


def _spelled(word: str) -> str:
    key, _, value = word.partition("=")
    limit = _limit(key.removeprefix("slo.")) if key.startswith("slo.") else ""
    return f"slo.at_most_ms.{limit}={value}" if limit else word


def _listed(word: str) -> list[str]:
    """A word for each bound of a list; the usual bounds that it lacks are unset."""
    try:
        bounds = bounded_yaml.read(word.partition("=")[2])
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{LIST}: the value is not YAML; write {SAMPLE}") from error
    if not isinstance(bounds, list) or not bounds:
        raise ConfigError(f"{LIST} must be a list with a bound or more: {SAMPLE}")
    words = [_bound(bound) for bound in bounds]
    keys = [word.partition("=")[0] for word in words]
    return words + [f"{key}=null" for limit in LIMITS if (key := f"slo.{column(limit)}") not in keys]


def _bound(bound: Any) -> str:
    """The word of a bound in a list."""
    if not isinstance(bound, dict) or set(bound) != {"metric", "quantile", "ms"}:
        raise ConfigError(f"{LIST}: each bound has metric, quantile and ms: {SAMPLE}")
    metric, quantile, ms = (bound[name] for name in ("metric", "quantile", "ms"))
    if metric not in list(METRICS) or ms is None:
        raise ConfigError(f"{LIST}: metric is one of {', '.join(METRICS)}, and ms is a number")
    try:
        return f"slo.{column(limit_of(metric, quantile))}={json.dumps(ms)}"
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{LIST}: metric is one of {', '.join(METRICS)}, quantile from .5 to .999, of three digits"
        ) from error


FIXED = asdict(Lengths(1))
"""Every field of a fixed length; a word changes its mean."""


class Word(NamedTuple):
    """The dotted key that a word sets, and the word as a tree."""

    key: str
    tree: dict[str, Any]


def parsed(root: Fields, words: Sequence[str], refusals: Refusals) -> list[Word]:
    """The words whose keys can be set; `root` has the types of all keys."""
    settings: list[Word] = []
    for word in words:
        with refusals.collected():
            key, text = key_and_value(word)
            value = _value(bare(type_of(root, key))[0], key, text)
            constants.check_key(key)
            tree = reduce(lambda inner, part: {part: inner}, reversed(key.split(".")), value)
            settings.append(Word(key, tree))
    return settings


def of_keys(words: Iterable[Word], keys: Iterable[str]) -> list[Word]:
    """The words that set one of these keys."""
    wanted = set(keys)
    return [word for word in words if word.key in wanted]


def _value(kind: Any, key: str, text: str) -> Any:
    """The value of a word; a text stays as it was typed, so that a run named 007 is no number."""
    try:
        value = bounded_yaml.read(text)
    except (yaml.YAMLError, ValueError) as error:
        # The error as a whole would show the value, which may hold a secret.
        reason = getattr(error, "problem", None) or "not a text YAML allows"
        raise ConfigError(
            f"{key}: the value is not YAML ({reason}); put text with brackets or colons in quotes"
        ) from error
    if kind is str and not isinstance(value, str | list | dict | None):
        return text
    if kind in (int, float) and isinstance(value, str):
        with suppress(ValueError):  # YAML takes -.5, 08 and nan for texts
            return kind(value)
    if kind is Lengths and isinstance(value, int) and not isinstance(value, bool):
        return {**FIXED, "mean": value}  # whatever the distribution was before
    return value
