"""The judgement of a window, or of a whole run: valid, or void for a reason with its remedy.

A void window neither passes nor fails and is never averaged in. Unknown is None, never True.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from analysis.capacity.checks import RULES
from analysis.capacity.rules import LEAST_VALID_WINDOWS, REASONS, Check, Facts, WindowEvidence
from analysis.capacity.window_counts import Window
from analysis.rows import failures, metrics
from conf.specs.experiment import Slo

RANK = {False: 2, None: 0, True: 1}
"""The outcome of a check, from unknown to the worst."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Valid, or void for `reason` (a key of `REASONS`; empty when valid), with all checks.

    `time_scale` is how many times as fast as the real clock the run's was, `failure` the most frequent kind
    of failed answers where these void it.
    """

    valid: bool
    reason: str
    checks: tuple[Check, ...]
    time_scale: float = 1.0
    failure: str = ""

    @property
    def remedy(self) -> str:
        """Advice to the user; empty when valid."""
        if self.reason not in REASONS:
            return ""
        reason, kind = REASONS[self.reason], self.failure
        most = f"Most: {failures.described(kind)}. {failures.remedy(kind)}" if kind else ""
        slower = reason.on_fast_clock if self.time_scale > 1 else ""
        return " ".join(filter(None, (reason.remedy, most, slower)))


VALID = Verdict(True, "", ())
"""The verdict on a window before any check."""
ROWS_ALONE = WindowEvidence()


def judge_window(
    requests: pa.Table, window: Window, slo: Slo, evidence: WindowEvidence = ROWS_ALONE
) -> Verdict:
    """Valid or void, from the run's rows, of which the window's are taken.

    The window of a closed loop begins after the ramp-up and ends when the last request is sent. What only a
    closed loop can get wrong is information: its figures are for comparison and no capacity.
    """
    facts = Facts(requests, window, slo, evidence)
    checks = tuple(check for rule in RULES if (check := rule.check(facts)) is not None)
    reason = next((check.reason for check in checks if check.voids), "")
    failure = failures.most_malformed(facts.rows) if reason == "malformed_answers" else ""
    return Verdict(not reason, reason, checks, metrics.whole_time_scale(facts.rows), failure)


def judge_run(windows: Sequence[Verdict], min_windows: int) -> Verdict:
    """Valid if at least max(2, `min_windows`) windows are; else void for the first void window's reason."""
    void = next((one for one in windows if not one.valid), Verdict(False, "too_few_windows", ()))
    valid, least = float(sum(one.valid for one in windows)), float(max(LEAST_VALID_WINDOWS, min_windows))
    check = Check("valid_windows", valid >= least, valid, least, "", void.reason, least=True)
    scale = max((one.time_scale for one in windows), default=1.0)
    if check.passed:
        return Verdict(True, "", (check,), scale)
    return Verdict(False, void.reason, (check,), scale, void.failure)


def worst_checks(verdicts: Sequence[Verdict]) -> tuple[Check, ...]:
    """The worst figure of each check over the windows."""
    return tuple(worst_by_name(check for verdict in verdicts for check in verdict.checks).values())


def worst_by_name(checks: Iterable[Check]) -> dict[str, Check]:
    """The worst figure of each check; failed ones are worse than all others."""
    worst: dict[str, Check] = {}
    for check in checks:
        known = worst.setdefault(check.name, check)
        if (RANK[check.passed], _distance(check)) > (RANK[known.passed], _distance(known)):
            worst[check.name] = check
    return worst


def _distance(check: Check) -> float:
    """Distance of a figure towards its bound; the larger of two is the worse."""
    if check.value is None or check.bound is None:
        return -math.inf
    return float(check.bound - check.value) if check.least else abs(float(check.value))
