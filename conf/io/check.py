"""Functions by which specs refuse values."""

import math
from collections.abc import Mapping
from typing import Any


def require(condition: bool, message: str) -> None:
    """Raise ValueError with a one-line message the user can act on."""
    if not condition:
        raise ValueError(message)


def require_positive(group: str, spec: object, *names: str) -> None:
    """Raise ValueError unless each named field is a finite number above zero, or None."""
    for name in names:
        value = getattr(spec, name)
        require(value is None or 0 < value < math.inf, f"{group}{name}={value} must be positive and finite")


def require_not_negative(group: str, spec: object, *names: str) -> None:
    """Raise ValueError unless each named field is a finite number of at least zero."""
    for name in names:
        value = getattr(spec, name)
        rule = "must not be negative" if value < 0 else "must be finite"
        require(0 <= value < math.inf, f"{group}{name}={value:g} {rule}")


def require_at_least_one(group: str, spec: object, *names: str) -> None:
    """Raise ValueError unless each named field is at least 1, or None."""
    for name in names:
        value = getattr(spec, name)
        require(value is None or value >= 1, f"{group}{name}={value} must be at least 1")


def require_within(group: str, spec: object, **most: float) -> None:
    """Raise ValueError for a named field beyond its limit: a slip of the finger, or a wrong unit."""
    for name, limit in most.items():
        value = getattr(spec, name)
        require(value is None or value <= limit, f"{group}{name}={value} is beyond reason; at most {limit:g}")


def require_mapping(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The mapping that `key` holds, empty for none or `null`. Raises ValueError for another value."""
    value = tree.get(key)
    require(value is None or isinstance(value, dict), f"{key}={value} is not a mapping of keys to values")
    return value or {}
