"""Checks of a measurement: the worst figure of each over all windows."""

import math
from collections.abc import Sequence

from analysis.capacity.check import Check
from analysis.capacity.validity import Verdict

_RANK = {False: 2, None: 0, True: 1}


def worst_checks(verdicts: Sequence[Verdict]) -> tuple[Check, ...]:
    """The worst figure of each check over the windows; failed ones are worse than all others."""
    worst: dict[str, Check] = {}
    for check in (check for verdict in verdicts for check in verdict.checks):
        known = worst.setdefault(check.name, check)
        if (_RANK[check.passed], _distance(check)) > (_RANK[known.passed], _distance(known)):
            worst[check.name] = check
    return tuple(worst.values())


def _distance(check: Check) -> float:
    """Distance of a figure towards its bound; the larger of two is the worse."""
    if check.value is None or check.bound is None:
        return -math.inf
    return float(check.bound - check.value) if check.least else abs(float(check.value))
