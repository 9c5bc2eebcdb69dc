"""Short words of bounds: `slo.itl_p99_ms=80`, and a whole list, `slo.bounds=[{metric: itl, ...}]`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from conf.io import bounded_yaml
from conf.io.check import ConfigError, Refusals
from conf.io.one_line import one_line
from conf.specs.bounds import LIMITS, METRICS, column, limit_of

LIST = "slo.bounds"
SAMPLE = "slo.bounds=[{metric: ttft, quantile: .9, ms: 2000}, {metric: itl, quantile: .99, ms: 80}]"
_OWN = {column(limit) for limit in LIMITS}
"""Keys that the spec has as they are typed."""
_SHORT = re.compile(rf"((?:{'|'.join(METRICS)})_p\d+)_ms")


def spelled(words: Sequence[str], refusals: Refusals) -> list[str]:
    """The words with each short one as the key of the spec that it sets.

    A list of bounds that is none, or that stands beside other bounds, is left out and refused.
    """
    if not are_listed(words):
        return [_spelled(word) for word in words]
    others = [word for word in words if not word.startswith(f"{LIST}=")]
    also_set = [word.partition("=")[0] for word in others if _SHORT.search(word.partition("=")[0])]
    if also_set:
        refusals.reasons.append(f"{LIST} and {also_set[0]} set the same; leave one of them out")
        return [_spelled(word) for word in others]
    with refusals.collected():
        return [*others, *_listed(next(word for word in words if word.startswith(f"{LIST}=")))]
    return others


def short_key(key: str) -> str:
    """A key as a user writes it: `slo.itl_p99_ms` for `slo.at_most_ms.itl_p99`."""
    limit = key.removeprefix("slo.at_most_ms.")
    return key if limit == key else f"slo.{limit}_ms"


def are_listed(words: Sequence[str]) -> bool:
    """True if a word has the whole list of bounds."""
    return any(word.startswith(f"{LIST}=") for word in words)


def nested(slo: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of a file's `slo` with short keys moved to where the spec has them."""
    short = {key: match[1] for key in slo if (match := _SHORT.fullmatch(str(key))) and key not in _OWN}
    rest = {key: value for key, value in slo.items() if key not in short}
    others = rest.get("at_most_ms", {})
    if not short or not isinstance(others, dict):
        return rest
    return rest | {"at_most_ms": others | {limit: slo[key] for key, limit in short.items()}}


def _spelled(word: str) -> str:
    key, _, value = word.partition("=")
    match = _SHORT.fullmatch(key.removeprefix("slo."))
    if not key.startswith("slo.") or match is None or key.removeprefix("slo.") in _OWN:
        return word
    return f"slo.at_most_ms.{match[1]}={value}"


def _listed(word: str) -> list[str]:
    try:
        bounds = bounded_yaml.read(word.partition("=")[2])
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{LIST}: the value is not YAML; write {SAMPLE}") from error
    if not isinstance(bounds, list) or not bounds:
        raise ConfigError(f"{LIST} must be a list with a bound or more: {SAMPLE}")
    ms_of_key: dict[str, str] = {}
    for bound in bounds:
        key, ms = _bound(bound)
        if key in ms_of_key:
            raise ConfigError(f"{LIST}: the bound {key} is given twice; leave one of them out")
        ms_of_key[key] = ms
    unset = {column(limit): "null" for limit in LIMITS}
    return [_spelled(f"slo.{key}={ms}") for key, ms in (unset | ms_of_key).items()]


def _bound(bound: Any) -> tuple[str, str]:
    """The short key of a bound in a list, and its value."""
    if not isinstance(bound, dict) or set(bound) != {"metric", "quantile", "ms"}:
        raise ConfigError(f"{LIST}: each bound has metric, quantile and ms: {SAMPLE}")
    metric, quantile, ms = (bound[name] for name in ("metric", "quantile", "ms"))
    if metric not in METRICS:
        raise ConfigError(
            f"{LIST}: metric must be one of {', '.join(METRICS)}, not {one_line(str(metric), 40)}"
        )
    for name, value in (("quantile", quantile), ("ms", ms)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{LIST}: {name} must be a number, not {one_line(str(value), 40)}")
    try:
        return column(limit_of(metric, float(quantile))), repr(float(ms))
    except ValueError as error:
        raise ConfigError(f"{LIST}: {error}") from error
