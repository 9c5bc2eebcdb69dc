"""Values of words: `slo.ttft_p90_ms=1500` becomes the plain value of a key of the specs."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import yaml

from conf import constants
from conf.io import bounded_yaml
from conf.io.check import ConfigError, Refusals, require
from conf.keys import Fields, bare, type_of
from conf.specs.bounds import LIMITS, METRICS, column, limit_of, long_key
from conf.specs.request_sizes import Lengths

LIST = "slo.bounds"
SAMPLE = "slo.bounds=[{metric: ttft, quantile: .9, ms: 2000}, {metric: itl, quantile: .99, ms: 80}]"
USUAL = dict.fromkeys(f"slo.{column(limit)}" for limit in LIMITS)
"""The bounds that a list unsets where it lacks them."""
FIXED = asdict(Lengths(1))
"""Every field of a fixed length; a word changes its mean."""


def parsed(root: Fields, texts: Mapping[str, str], refusals: Refusals) -> dict[str, Any]:
    """The values of words by the keys of the specs that they set; `root` has the types of all keys.

    What cannot be set is left out and refused, as is a list of bounds beside other bounds.
    """
    values: dict[str, Any] = {}
    for key, text in texts.items():
        with refusals.collected():
            if key == LIST and "slo" in root:
                bounds = [it for it in texts if it in USUAL or long_key(it).startswith("slo.at_most_ms")]
                also_set = bounds[0] if bounds else ""
                require(not also_set, f"{LIST} and {also_set} set the same; leave one of them out")
                values |= _listed(text)
            else:
                own = long_key(key) if "slo" in root else key
                value = _value(bare(type_of(root, own))[0], own, text)
                constants.check_key(own)
                values[own] = value
    return values


def _listed(text: str) -> dict[str, Any]:
    """The values of a list of bounds."""
    try:
        bounds = bounded_yaml.read(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{LIST}: the value is not YAML; write {SAMPLE}") from error
    if not isinstance(bounds, list) or not bounds:
        raise ConfigError(f"{LIST} must be a list with a bound or more: {SAMPLE}")
    listed: dict[str, Any] = {}
    for bound in bounds:
        key, ms = _bound(bound)
        require(key not in listed, f"{key} is given twice; leave one of them out")
        listed[key] = ms
    return {long_key(key): ms for key, ms in (USUAL | listed).items()}


def _bound(bound: Any) -> tuple[str, Any]:
    """The key of a bound in a list, as a user writes it, and its value."""
    if not isinstance(bound, dict) or set(bound) != {"metric", "quantile", "ms"}:
        raise ConfigError(f"{LIST}: each bound has metric, quantile and ms: {SAMPLE}")
    metric, quantile, ms = (bound[name] for name in ("metric", "quantile", "ms"))
    with suppress(TypeError, ValueError):
        if metric in METRICS and ms is not None:
            return f"slo.{column(limit_of(metric, quantile))}", ms
    raise ConfigError(
        f"{LIST}: metric is one of {', '.join(METRICS)}, quantile from .5 to .999, of three digits, and ms a "
        "number"
    )


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
