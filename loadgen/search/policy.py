"""The search "ramp, then focus": the next segment of load as a function of what was seen so far.

Does no I/O and reads no clock, so that a resumed run replays it from its outcomes. Source of the constants:
the method, sections 4.1 and 4.2, where no other is named.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import posterior
from analysis.rows.failures import NEARLY_ALL
from conf.specs.experiment import Search
from loadgen.search.next_rate import missed_bound, next_rate
from loadgen.search.pacing import DWELL_LEAST, TRANSITION_E2E, fitted, lasting_s, within_bounds
from loadgen.search.ramp import ramp
from loadgen.search.segments import (
    PREDICTION_SD,
    FirstWindow,
    Outcome,
    Segment,
    Start,
    Stop,
    dwells_of,
    nearly_all_failed,
    overloaded,
    share_over,
)

NEAR = 0.06
"""Largest change of the ln rate without a transition: the load before is counted too."""
FIRST_OVER_LATER = 1.5
"""Ratio of the first transition to a later one, whose rates are closer (simulated, two-minute answers)."""
CONFIRMATION_TRIES = 2
VOID_SPARES = 2
"""Void windows are replaced beyond the budget, up to this many times `min_dwells` windows in all; after a
window that failed nothing is granted."""
VOID_FAILED = 0.2
"""Failed share of the requests of a void window from which on the failures are its reason (our choice)."""


def next_segment(spec: Search, start: Start, outcomes: Sequence[Outcome], elapsed_s: float) -> Segment | Stop:
    """The next segment after `outcomes`, `elapsed_s` of the budget being spent."""
    begin = _begin(spec, start, outcomes)
    spec = fitted(spec, start, outcomes)
    if not isinstance(begin, FirstWindow):
        return begin
    dwells = _dwells(outcomes)
    if len(dwells) >= 2 and all(
        missed_bound(o) and o.segment.rate_qps <= spec.lowest_qps for o in dwells[-2:]
    ):
        return Stop("slo_not_met_at_lowest", f"over twice at search.lowest_qps={spec.lowest_qps:g} per node")
    wanted, reason = (begin.first_qps, begin.reason) if not dwells else next_rate(begin, dwells)
    segment = _segment(spec, start, outcomes, "dwell", within_bounds(spec, wanted), reason)
    valid = sum(not outcome.void for outcome in dwells)
    granted = valid < spec.min_dwells and len(dwells) < VOID_SPARES * spec.min_dwells
    granted = granted and not (dwells and _fails(dwells[-1]))
    if valid < spec.min_dwells and outcomes and share_over(outcomes[-1]) >= NEARLY_ALL:
        # The rate falls, and windows of many requests at a low rate would outlast the budget.
        share_s = (spec.budget_s - elapsed_s) / (spec.min_dwells - valid)
        longest_s = max(spec.window_s, share_s - segment.transition_s)
        segment = replace(segment, window_s=min(segment.window_s, longest_s))
    confirmations = [outcome for outcome in outcomes if outcome.segment.kind == "hold"]
    over_budget = elapsed_s + segment.transition_s + segment.window_s > spec.budget_s
    if not confirmations and (granted or not over_budget):
        return segment
    if (
        spec.confirm_s
        and valid >= spec.min_dwells
        and (not confirmations or (confirmations[-1].void and len(confirmations) < CONFIRMATION_TRIES))
    ):
        rate_qps = within_bounds(spec, posterior(dwells_of(dwells), begin.prior).certified)
        reason = f"hold at the 5 % quantile, {rate_qps:.3g} per node: it may veto the answer"
        return _segment(spec, start, outcomes, "hold", rate_qps, reason)
    return Stop("budget", f"{valid} dwells in {elapsed_s:.0f} s; one more would exceed {spec.budget_s:g} s")


def prior(spec: Search, start: Start, outcomes: Sequence[Outcome]) -> Prior | None:
    """The prior of the posterior over these windows; None while the ramp is not over."""
    begin = _begin(spec, start, outcomes)
    return begin.prior if isinstance(begin, FirstWindow) else None


def _begin(spec: Search, start: Start, outcomes: Sequence[Outcome]) -> Segment | Stop | FirstWindow:
    """The next ramp step, or where the windows begin; windows that came since change neither."""
    ramped = [outcome for outcome in outcomes if outcome.segment.kind == "ramp"]
    spec = fitted(spec, start, ramped)
    if spec.start == "prediction" and start.prediction_qps is not None:
        guess = start.prediction_qps
        first = within_bounds(spec, guess * math.exp(-start.first_below))
        return FirstWindow(Prior(math.log(guess), PREDICTION_SD), first, f"{guess:.3g} is expected")
    return ramp(spec, start, ramped)


def _segment(
    spec: Search,
    start: Start,
    outcomes: Sequence[Outcome],
    kind: Literal["dwell", "hold"],
    rate_qps: float,
    reason: str,
) -> Segment:
    """A window or a confirmation run at a rate, with the transition that it needs."""
    dwells = _dwells(outcomes)
    return Segment(
        index=len(outcomes),
        kind=kind,
        rate_qps=rate_qps,
        transition_s=_transition_s(spec, start, outcomes, dwells, rate_qps),
        window_s=max(spec.window_s if kind == "dwell" else spec.confirm_s, DWELL_LEAST / rate_qps),
        settle_before=_leaves_backlog(dwells[-1], rate_qps) if dwells else bool(outcomes),
        reason=reason,
    )


def _dwells(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.segment.kind == "dwell"]


def _transition_s(
    spec: Search, start: Start, outcomes: Sequence[Outcome], dwells: Sequence[Outcome], rate: float
) -> float:
    """Seconds in which the service forgets the rate before: two lives of an answer, 0 for a small change."""
    lasting = TRANSITION_E2E * lasting_s(start, outcomes)
    if not dwells:
        # After a ramp the service is warm, but its batch that of another rate.
        least = spec.transition_s if outcomes else spec.first_transition_s
        lasting *= FIRST_OVER_LATER
    elif _leaves_backlog(dwells[-1], rate):
        least = 2 * spec.transition_s
    elif not dwells[-1].void and abs(math.log(rate / dwells[-1].segment.rate_qps)) <= NEAR:
        return 0.0
    else:
        least = spec.transition_s
    # An overloaded ramp step is over when the queue is empty; its answers say nothing about the rate to come.
    return max(least, lasting)


def _leaves_backlog(last: Outcome, rate: float) -> bool:
    """True if the last window left a backlog that the next one, well below it at `rate`, must not inherit."""
    return last.aborted or (overloaded(last) and math.log(last.segment.rate_qps / rate) > NEAR)


def _fails(window: Outcome) -> bool:
    """True if nearly all requests of a window failed, or so many that they are why it is void."""
    dwell = window.dwell
    return nearly_all_failed(dwell) or (window.void and dwell.failed > VOID_FAILED * dwell.requests)
