"""Short words of bounds: `slo.itl_p99_ms=80`, and a whole list, `slo.bounds=[{metric: itl, ...}]`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from conf.io import bounded_yaml
from conf.io.one_line import one_line
from conf.specs.bounds import LIMITS, METRICS, column, limit_of
from conf.words import ConfigError

LIST = "slo.bounds"
SAMPLE = "slo.bounds=[{metric: ttft, quantile: .9, ms: 2000}, {metric: itl, quantile: .99, ms: 80}]"
_OWN = {column(limit) for limit in LIMITS}
"""Keys that the spec has as they are typed."""
_SHORT = re.compile(rf"((?:{'|'.join(METRICS)})_p\d+)_ms")


def spelled(words: Sequence[str]) -> list[str]:
    """The words with each short one as the key of the spec that it sets.

    Raises ConfigError for a list of bounds that is none, or that stands beside other bounds.
    """
    if not any(word.startswith(f"{LIST}=") for word in words):
        return [_spelled(word) for word in words]
    beside = [word.partition("=")[0] for word in words if _SHORT.search(word.partition("=")[0])]
    if beside:
        raise ConfigError(f"{LIST} and {beside[0]} set the same; leave one of them out")
    others = [word for word in words if not word.startswith(f"{LIST}=")]
    return [*others, *_listed(next(word for word in words if word.startswith(f"{LIST}=")))]


def nested(slo: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of a file's `slo` with short keys moved to where the spec has them."""
    short = {key: found[1] for key in slo if (found := _SHORT.fullmatch(str(key))) and key not in _OWN}
    rest = {key: value for key, value in slo.items() if key not in short}
    if not short:
        return rest
    return rest | {
        "at_most_ms": {**rest.get("at_most_ms", {}), **{limit: slo[key] for key, limit in short.items()}}
    }


def _spelled(word: str) -> str:
    key, _, value = word.partition("=")
    found = _SHORT.fullmatch(key.removeprefix("slo."))
    if not key.startswith("slo.") or found is None or key.removeprefix("slo.") in _OWN:
        return word
    return f"slo.at_most_ms.{found[1]}={value}"


def _listed(word: str) -> list[str]:
    try:
        bounds = bounded_yaml.read(word.partition("=")[2])
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{LIST}: the value is not YAML; write {SAMPLE}") from error
    if not isinstance(bounds, list) or not bounds:
        raise ConfigError(f"{LIST} must be a list with a bound or more: {SAMPLE}")
    found: dict[str, str] = {}
    for bound in bounds:
        key, ms = _bound(bound)
        if key in found:
            raise ConfigError(f"{LIST}: the bound {key} is given twice; leave one of them out")
        found[key] = ms
    unset = {column(limit): "null" for limit in LIMITS}
    return [_spelled(f"slo.{key}={ms}") for key, ms in (unset | found).items()]


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
