"""The one way a spec refuses a value; knows no spec."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

SECRET = re.compile(r"(TOKEN|KEY|PASSWORD|PASSWD|CREDENTIALS?)$|SECRET|(API|ACCESS)_?KEY", re.IGNORECASE)
"""Names whose values are secret: of variables (HF_TOKEN, AWS_ACCESS_KEY_ID) and arguments (api_key) alike."""


def require(condition: bool, message: str) -> None:
    """Raise ValueError with a one-line message the user can act on."""
    if not condition:
        raise ValueError(message)


def require_positive(group: str, spec: object, *names: str) -> None:
    """Raise ValueError unless each named field is a finite number above zero."""
    for name in names:
        value = getattr(spec, name)
        require(0 < value < math.inf, f"{group}{name}={value} must be positive and finite")


def require_within(group: str, spec: object, **most: float) -> None:
    """Raise ValueError for a named field beyond all reason: a slip of the finger, or a wrong unit."""
    for name, limit in most.items():
        value = getattr(spec, name)
        require(value is None or value <= limit, f"{group}{name}={value} is beyond reason; at most {limit:g}")


def require_public(group: str, names: Iterable[str]) -> None:
    """Raise ValueError for a name that looks like a secret's: every value here is saved with the run."""
    for name in names:
        message = f"{group}{name} would be saved with the run; set it in the environment of the nodes instead"
        require(SECRET.search(name) is None, message)


def require_mapping(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The mapping that `key` holds, empty for none or `null`. Raises ValueError for another value."""
    value = tree.get(key)
    require(value is None or isinstance(value, dict), f"{key}={value} is not a mapping of keys to values")
    return value or {}
