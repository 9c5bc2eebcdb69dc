"""The one way a spec refuses a value; knows no spec."""

import math


def require(condition: bool, message: str) -> None:
    """Raise ValueError with a one-line message the user can act on."""
    if not condition:
        raise ValueError(message)


def require_positive(group: str, spec: object, *names: str) -> None:
    """Raise ValueError unless each named field is a finite number above zero."""
    for name in names:
        value = getattr(spec, name)
        require(0 < value < math.inf, f"{group}{name}={value} must be positive and finite")
