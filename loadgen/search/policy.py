"""The search "ramp, then focus": the next window of load as a function of what was seen so far.

Does no I/O and reads no clock, so that a resumed run replays it from its outcomes. Source of the constants:
the method, sections 4.1 and 4.2, where no other is named.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import Capacity, posterior
from analysis.capacity.share_curves import logit
from analysis.rows.failures import NEARLY_ALL
from conf.specs.bounds import GAPS, allowed_over, metric_of
from conf.specs.experiment import Search
from loadgen.search.pacing import TRANSITION_E2E, WINDOW_LEAST, fitted, lasting_s, within_bounds
from loadgen.search.ramp import ramp
from loadgen.search.window_plan import (
    PREDICTION_SD,
    FirstWindow,
    MeasuredWindow,
    Start,
    Stop,
    WindowPlan,
    counted_windows,
    nearly_all_failed,
    overloaded,
    share_over,
)

OFFSETS = (0.0, -0.03, 0.02, -0.015)
AIMED, AIMED_GAPS, MOST_AIMED = 4.0, 8.0, 0.1
"""Share over the bound that binds where windows are placed: so many times what is allowed, up to a tenth. A
share p tells of the rate in proportion to p (1 - p): under a p99 next to nothing is seen at the capacity.
Gaps are long in bursts that are rarer still, and their logit line stays straight for longer: at 8 times the
RMSE of p99 ITL falls from 4.0 to 3.2 %, and that of p99 TTFT rises from 3.1 to 3.7 % (40 searches each)."""
MOST_ABOVE = 0.16
"""Largest ln distance of these windows from the capacity; with 0.22 the RMSE of p99 ITL is 3.8 %."""
CLEAN_SHARE = 0.01
"""Largest share over a bound in a clean window, which says little: the search then raises the rate faster.
As long as the share was not shown to rise with the load, some requests may be over at any load, and a window
is clean that keeps the bound."""
CLEAN_STEP, MOST_CLEAN_STEP, BELOW_OVERLOAD = 0.05, 0.4, 0.05
"""ln step after a clean window, doubled with each more in a row; its largest value; and the
ln distance that is kept below a rate that was overloaded."""
STEP_UP, STEP_DOWN, MOST_DOWN = 0.10, 0.20, 0.8
"""Largest ln steps above a window that was not clean, and below any. While all missed a bound, the step down
is at least the second value from the third window on, or from the second while all were overloaded, and
doubles up to the third value."""
MISSED_SHARE = 0.2
"""Share over a bound above which a window missed it, and not by chance."""


def next_rate(begin: FirstWindow, windows: Sequence[MeasuredWindow]) -> tuple[float, str]:
    """The next rate per node and its reason: the posterior's median, spread a little to show the slope.

    Under a bound that fewer than a tenth may miss it lies above the median, where more is seen.
    """
    last = windows[-1]
    before = last.plan.rate_qps
    capacity = posterior(counted_windows(windows), begin.prior)
    offset = OFFSETS[(len(windows) - 1) % len(OFFSETS)] + _aimed_above(capacity)
    wanted = capacity.qps_per_node * math.exp(offset)
    reason = f"posterior {capacity.qps_per_node:.3g} [{capacity.low:.3g}, {capacity.high:.3g}] {offset:+.1%}"
    clean = _in_a_row(windows, _kept if capacity.open_above else _clean)
    # Most windows are clean at the capacity too under a p99: then what is known above is not climbed over.
    known = allowed_over(capacity.binding) < MOST_AIMED and not capacity.open_above
    higher = min(_raised(windows, clean), capacity.high if known else math.inf)
    if clean and higher > wanted:
        return higher, f"{reason}, climbing: {clean} in a row kept the bounds"
    # Nothing is known below windows that all missed a bound, least of all that a rate above them keeps it.
    missed, chances = _in_a_row(windows, missed_bound), 2 if all(map(overloaded, windows)) else 3
    if missed == len(windows) >= chances:
        down = min(STEP_DOWN * 2 ** (missed - chances), MOST_DOWN)
        return min(wanted, before * math.exp(-down)), f"{reason}, going down: all {missed} missed a bound"
    if wanted > (most := before * math.exp(MOST_CLEAN_STEP if clean else STEP_UP)):
        return most, f"{reason}, held back to a small step up"
    if wanted < (least := before * math.exp(-STEP_DOWN)):
        return least, f"{reason}, held back to a small step down"
    return wanted, reason


def _aimed_above(capacity: Capacity) -> float:
    """ln distance from the capacity to the rate with the aimed share over the bound that binds."""
    allowed = allowed_over(capacity.binding)
    times = AIMED_GAPS if metric_of(capacity.binding) in GAPS else AIMED
    aimed = max(allowed, min(times * allowed, MOST_AIMED))
    return min((logit(aimed) - logit(allowed)) / capacity.limits[capacity.binding].slope, MOST_ABOVE)


def _in_a_row(windows: Sequence[MeasuredWindow], fits: Callable[[MeasuredWindow], bool]) -> int:
    return next((n for n, outcome in enumerate(reversed(windows)) if not fits(outcome)), len(windows))


def _clean(outcome: MeasuredWindow) -> bool:
    return _kept(outcome) and share_over(outcome) <= CLEAN_SHARE


def _kept(outcome: MeasuredWindow) -> bool:
    """True if no bound was missed by more requests than may."""
    limits = outcome.counts.limits.items()
    within = all((counted.share or 0.0) <= allowed_over(limit) for limit, counted in limits)
    return within and not (outcome.void or outcome.aborted)


def missed_bound(outcome: MeasuredWindow) -> bool:
    """True if a bound was missed, and not by chance."""
    return not outcome.void and (outcome.aborted or share_over(outcome) > MISSED_SHARE)


def _raised(windows: Sequence[MeasuredWindow], clean: int) -> float:
    """The rate after so many clean windows in a row, below every rate that was overloaded."""
    step = min(CLEAN_STEP * 2 ** max(0, clean - 1), MOST_CLEAN_STEP)
    ceilings = [o.plan.rate_qps * math.exp(-BELOW_OVERLOAD) for o in windows if not o.void and overloaded(o)]
    return min([windows[-1].plan.rate_qps * math.exp(step), *ceilings])


NEAR = 0.06
"""Largest change of the ln rate without a transition: the load before is counted too."""
FIRST_OVER_LATER = 1.5
"""Ratio of the first transition to a later one, whose rates are closer (simulated, two-minute answers)."""
CONFIRMATION_TRIES = 2
VOID_SPARES = 2
"""Void windows are replaced beyond the budget, up to this many times `min_windows` windows in all; after a
window that failed nothing is granted."""
VOID_FAILED = 0.2
"""Failed share of the requests of a void window from which on the failures are its reason (our choice)."""


def next_window(
    spec: Search, start: Start, outcomes: Sequence[MeasuredWindow], elapsed_s: float
) -> WindowPlan | Stop:
    """The next window after `outcomes`, `elapsed_s` of the budget being spent."""
    begin = _begin(spec, start, outcomes)
    spec = fitted(spec, start, outcomes)
    if not isinstance(begin, FirstWindow):
        return begin
    windows = _windows(outcomes)
    if len(windows) >= 2 and all(
        missed_bound(o) and o.plan.rate_qps <= spec.lowest_qps for o in windows[-2:]
    ):
        return Stop("slo_not_met_at_lowest", f"over twice at search.lowest_qps={spec.lowest_qps:g} per node")
    wanted, reason = (begin.first_qps, begin.reason) if not windows else next_rate(begin, windows)
    plan = _window_plan(spec, start, outcomes, "window", within_bounds(spec, wanted), reason)
    valid = sum(not outcome.void for outcome in windows)
    granted = valid < spec.min_windows and len(windows) < VOID_SPARES * spec.min_windows
    granted = granted and not (windows and _fails(windows[-1]))
    if valid < spec.min_windows and outcomes and share_over(outcomes[-1]) >= NEARLY_ALL:
        # The rate falls, and windows of many requests at a low rate would outlast the budget.
        share_s = (spec.budget_s - elapsed_s) / (spec.min_windows - valid)
        longest_s = max(spec.window_s, share_s - plan.transition_s)
        plan = replace(plan, window_s=min(plan.window_s, longest_s))
    confirmations = [outcome for outcome in outcomes if outcome.plan.kind == "hold"]
    over_budget = elapsed_s + plan.transition_s + plan.window_s > spec.budget_s
    if not confirmations and (granted or not over_budget):
        return plan
    if (
        spec.confirm_s
        and valid >= spec.min_windows
        and (not confirmations or (confirmations[-1].void and len(confirmations) < CONFIRMATION_TRIES))
    ):
        rate_qps = within_bounds(spec, posterior(counted_windows(windows), begin.prior).certified)
        reason = f"hold at the 5 % quantile, {rate_qps:.3g} per node: it may veto the answer"
        return _window_plan(spec, start, outcomes, "hold", rate_qps, reason)
    return Stop("budget", f"{valid} windows in {elapsed_s:.0f} s; one more would exceed {spec.budget_s:g} s")


def prior(spec: Search, start: Start, outcomes: Sequence[MeasuredWindow]) -> Prior | None:
    """The prior of the posterior over these windows; None while the ramp is not over."""
    begin = _begin(spec, start, outcomes)
    return begin.prior if isinstance(begin, FirstWindow) else None


def _begin(spec: Search, start: Start, outcomes: Sequence[MeasuredWindow]) -> WindowPlan | Stop | FirstWindow:
    """The next ramp step, or where the windows begin; windows that came since change neither."""
    ramped = [outcome for outcome in outcomes if outcome.plan.kind == "ramp"]
    spec = fitted(spec, start, ramped)
    if spec.start == "prediction" and start.prediction_qps is not None:
        guess = start.prediction_qps
        first = within_bounds(spec, guess * math.exp(-start.first_below))
        return FirstWindow(Prior(math.log(guess), PREDICTION_SD), first, f"{guess:.3g} is expected")
    return ramp(spec, start, ramped)


def _window_plan(
    spec: Search,
    start: Start,
    outcomes: Sequence[MeasuredWindow],
    kind: Literal["window", "hold"],
    rate_qps: float,
    reason: str,
) -> WindowPlan:
    """A window or a confirmation run at a rate, with the transition that it needs."""
    windows = _windows(outcomes)
    return WindowPlan(
        index=len(outcomes),
        kind=kind,
        rate_qps=rate_qps,
        transition_s=_transition_s(spec, start, outcomes, windows, rate_qps),
        window_s=max(spec.window_s if kind == "window" else spec.confirm_s, WINDOW_LEAST / rate_qps),
        settle_before=_leaves_backlog(windows[-1], rate_qps) if windows else bool(outcomes),
        reason=reason,
    )


def _windows(outcomes: Sequence[MeasuredWindow]) -> list[MeasuredWindow]:
    return [outcome for outcome in outcomes if outcome.plan.kind == "window"]


def _transition_s(
    spec: Search,
    start: Start,
    outcomes: Sequence[MeasuredWindow],
    windows: Sequence[MeasuredWindow],
    rate: float,
) -> float:
    """Seconds in which the service forgets the rate before: two lives of an answer, 0 for a small change."""
    lasting = TRANSITION_E2E * lasting_s(start, outcomes)
    if not windows:
        # After a ramp the service is warm, but its batch that of another rate.
        least = spec.transition_s if outcomes else spec.first_transition_s
        lasting *= FIRST_OVER_LATER
    elif _leaves_backlog(windows[-1], rate):
        least = 2 * spec.transition_s
    elif not windows[-1].void and abs(math.log(rate / windows[-1].plan.rate_qps)) <= NEAR:
        return 0.0
    else:
        least = spec.transition_s
    # An overloaded ramp step is over when the queue is empty; its answers say nothing about the rate to come.
    return max(least, lasting)


def _leaves_backlog(last: MeasuredWindow, rate: float) -> bool:
    """True if the last window left a backlog that the next one, well below it at `rate`, must not inherit."""
    return last.aborted or (overloaded(last) and math.log(last.plan.rate_qps / rate) > NEAR)


def _fails(window: MeasuredWindow) -> bool:
    """True if nearly all requests of a window failed, or so many that they are why it is void."""
    counts = window.counts
    return nearly_all_failed(counts) or (window.void and counts.failed > VOID_FAILED * counts.requests)
