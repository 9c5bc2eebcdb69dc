"""Checks of a run as table rows, each with its meaning from `analysis.capacity.rules`."""

from collections.abc import Sequence

from analysis.capacity.check import Check
from analysis.capacity.rules import MEANINGS
from analysis.report.wording import UNKNOWN, figure
from analysis.views.shown import Table

STATES = {"ok": "ok", "FAILED": "failed", "note": "note", UNKNOWN: "unknown"}
"""Outcomes of a check with the tone of its row. A note does not make a window void."""


def table(checks: Sequence[Check], valid: bool) -> Table:
    """The worst figure of each check, over the windows that count if there are any."""
    states = [state(check) for check in checks]
    rows = [_row(*pair) for pair in zip(checks, states, strict=True)]
    return Table(
        f"Every check with its worst figure over {'the windows that count' if valid else 'all windows'}",
        ("check", "state", "worst figure", "bound", "what it means"),
        tuple(rows),
        tones=tuple(STATES[one] for one in states),
        state=1,
        words=frozenset({4}),
        folded="FAILED" not in states,
        note="FAILED makes a window void. A note informs and decides nothing. Unknown: it does not apply, or "
        "was not reported.",
        stacks=True,
    )


def counted(checks: Sequence[Check]) -> str:
    """The number of checks in each state, as a sentence."""
    states = [state(check) for check in checks]
    known = [
        f"{count} {one}{'s' if one == 'note' and count > 1 else ''}"
        for one in STATES
        if (count := states.count(one))
    ]
    failed = "" if "FAILED" in states else "; none failed"
    if noted := [check.name for check, one in zip(checks, states, strict=True) if one == "note"]:
        failed += f" (notes: {', '.join(noted)})"
    return f"{len(states)} check{'' if len(states) == 1 else 's'}: {', '.join(known)}{failed}."


def state(check: Check) -> str:
    """The outcome of a check, one of `STATES`."""
    if check.passed is None:
        return UNKNOWN
    if check.passed:
        return "ok"
    return "FAILED" if check.reason else "note"


def _row(check: Check, outcome: str) -> tuple[str, ...]:
    unit = f" {check.unit}" if check.unit else ""
    sign = "at least " if check.least else "at most "
    worst = UNKNOWN if check.value is None else f"{figure(check.value)}{unit}"
    bound = UNKNOWN if check.bound is None else f"{sign}{figure(check.bound)}{unit}"
    return check.name, outcome, worst, bound, MEANINGS.get(check.name, UNKNOWN)
