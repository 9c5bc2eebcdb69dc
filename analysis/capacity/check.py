"""A check: one figure against its bound, and why its window is void if it fails."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One figure against its bound, a `least` one or else a most. `passed` None: unknown or not applicable.

    `reason` names why a window is void if the check fails; empty marks mere information.
    """

    name: str
    passed: bool | None
    value: float | None
    bound: float | None
    unit: str
    reason: str = ""
    least: bool = False

    @property
    def voids(self) -> bool:
        """True if this check alone makes its window void."""
        return self.passed is False and bool(self.reason)


def at_most(name: str, value: float | None, bound: float, unit: str, reason: str = "") -> Check:
    return Check(name, None if value is None else value <= bound, value, bound, unit, reason, least=False)


def at_least(name: str, value: float | None, bound: float, unit: str, reason: str = "") -> Check:
    return Check(name, None if value is None else value >= bound, value, bound, unit, reason, least=True)
