"""The rate of the next window: near the posterior's median, never far from the last window's rate.

Source of the constants: the method, sections 4.1 and 4.2, where no other is named.
"""

import math
from collections.abc import Callable, Sequence

from analysis.capacity.limit_posterior import logit
from analysis.capacity.posterior import Capacity, posterior
from conf.specs.bounds import GAPS, allowed_over, metric_of
from loadgen.search.window_plan import FirstWindow, MeasuredWindow, counted_windows, overloaded, share_over

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
"""Largest ln steps above a window that was not clean, and below any; while all missed a bound, the one
down doubles from the third on, up to `MOST_DOWN`, for nothing is known below all of them."""
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
    if wanted > (most := before * math.exp(MOST_CLEAN_STEP if clean else STEP_UP)):
        return most, f"{reason}, held back to a small step up"
    missed = _in_a_row(windows, missed_bound)
    down = min(STEP_DOWN * 2 ** max(0, missed - 2), MOST_DOWN)
    if missed == len(windows) > 2:
        return min(wanted, before * math.exp(-down)), f"{reason}, going down: all {missed} missed a bound"
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
