"""Checks of a run: how many are ok, and each with its worst figure and its bound."""

from collections.abc import Iterator, Sequence

from analysis.capacity.rules import Check
from analysis.stats.estimate import UNKNOWN, number
from analysis.views.shown import Fact, Table

TONES = {"ok": "ok", "FAILED": "failed", "note": "note", UNKNOWN: "unknown"}
"""States of a check with the tone of its row; a note decides nothing."""


def state(check: Check) -> str:
    """One of `TONES`: a failed check without a reason is a note, one that does not apply is unknown."""
    if check.passed is None:
        return UNKNOWN
    return "ok" if check.passed else "FAILED" if check.reason else "note"


def figures(check: Check, digits: int) -> tuple[str, str]:
    """The worst figure of a check, and its bound."""
    sign = ">=" if check.least else "<="
    worst, bound = (
        UNKNOWN if value is None else f"{number(value, digits)} {check.unit}".strip()
        for value in (check.value, check.bound)
    )
    return worst, f"{sign} {bound}"


def facts(checks: Sequence[Check]) -> Iterator[Fact]:
    """How many checks are ok, the failed ones with their figures, and the names of the notes."""
    states = {check: state(check) for check in checks if check.passed is not None}
    if states:
        ok = sum(word == "ok" for word in states.values())
        failed = [
            f"FAILED: {check.name} {', bound '.join(figures(check, 3))}"
            for check, word in states.items()
            if word == "FAILED"
        ]
        notes = ", ".join(check.name for check, word in states.items() if word == "note")
        said = [f"{ok} of {len(states)} ok", *failed, f"notes: {notes}" if notes else ""]
        yield "checks", "; ".join(filter(None, said))


def table(checks: Sequence[Check], digits: int = 3) -> Table:
    """A row for every check."""
    states = [state(check) for check in checks]
    rows = tuple(
        (check.name, *figures(check, digits), word) for check, word in zip(checks, states, strict=True)
    )
    tones = tuple(TONES[word] for word in states)
    return Table("", ("check", "worst figure", "bound", "state"), rows, tones=tones, state=3)
