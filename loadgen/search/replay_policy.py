"""Chooses the window of A that B replays next, and its rate; pure, so that a resumed run repeats it.

Does no I/O and reads no clock.
"""

import math
from collections.abc import Sequence

from conf.specs.experiment import Search
from loadgen.search.pacing import TRANSITION_E2E
from loadgen.search.policy import CLEAN_SHARE, MOST_CLEAN_STEP, NEAR, STEP_UP
from loadgen.search.window_plan import MeasuredWindow, Stop, WindowPlan, overloaded, share_over

TRIES = 2
"""Most replays of a window of A whose pair was void, ended early or was far from the answer."""
REPEAT_BEYOND = 0.05
"""ln distance from the present ratio beyond which a pair is worth another try."""
RATIO_UP, RATIO_DOWN = 0.04, 0.10
"""ln steps of the ratio while no request was over a bound, or while nothing else is known of B."""


def next_pair(
    spec: Search,
    templates: Sequence[WindowPlan],
    outcomes: Sequence[MeasuredWindow],
    log_ratio: float,
    elapsed_s: float,
) -> WindowPlan | Stop:
    """The next window of B after all its `outcomes`: one of `templates` at exp(`log_ratio`) times its rate.

    These are valid windows of A that were not ended early, with the times that they took. First every window
    of A is replayed once, in order; then, while B's budget lasts, those worth another try. The budget is
    scaled like time, for B has to serve A's requests however slow it is.
    """
    windows = [outcome for outcome in outcomes if outcome.plan.kind == "window"]
    tried = [outcome.plan.pair for outcome in windows]
    untried = [template for template in templates if template.index not in tried]
    left = untried or [one for one in templates if _again(one, windows, log_ratio)]
    if not left:
        return Stop("budget", f"all {len(templates)} windows of A were replayed in {elapsed_s:.0f} s")
    plan = _window_plan(spec, left[0], outcomes, windows, log_ratio)
    if plan.rate_qps < spec.lowest_qps:
        return Stop(
            "slo_not_met_at_lowest", f"B would go below search.lowest_qps={spec.lowest_qps:g} per node"
        )
    budget_s = spec.budget_s * max(1.0, math.exp(-log_ratio))
    if not untried and elapsed_s + plan.transition_s + plan.window_s > budget_s:
        return Stop("budget", f"{len(windows)} windows of A were replayed in {elapsed_s:.0f} s")
    return plan


def without_evidence(outcomes: Sequence[MeasuredWindow], tried: Sequence[float], start: float) -> float:
    """ln(ratio) to try while the pairs say nothing: lower after an overload, else higher."""
    if not tried:
        return start
    return tried[-1] - RATIO_DOWN if overloaded(outcomes[-1]) else max(tried) + RATIO_UP


def _again(template: WindowPlan, windows: Sequence[MeasuredWindow], log_ratio: float) -> bool:
    """True if no replay of a window was good and near the answer, and one more is allowed."""
    mine = [outcome for outcome in windows if outcome.plan.pair == template.index]
    good = [outcome for outcome in mine if not (outcome.void or outcome.aborted)]
    tried = [math.log(outcome.plan.rate_qps / template.rate_qps) for outcome in good]
    return len(mine) < TRIES and all(abs(ratio - log_ratio) > REPEAT_BEYOND for ratio in tried)


def _window_plan(
    spec: Search,
    template: WindowPlan,
    outcomes: Sequence[MeasuredWindow],
    windows: Sequence[MeasuredWindow],
    log_ratio: float,
) -> WindowPlan:
    rate_qps = min(template.rate_qps * math.exp(log_ratio), spec.highest_qps)
    why = f"B / A is thought to be {math.exp(log_ratio):.3g}"
    if windows:
        clean = share_over(windows[-1]) <= CLEAN_SHARE and not windows[-1].aborted
        most = windows[-1].plan.rate_qps * math.exp(MOST_CLEAN_STEP if clean else STEP_UP)
        why += ", held back to a small step up" if rate_qps > most else ""
        rate_qps = min(rate_qps, most)
    slower = template.rate_qps / rate_qps
    transition_s = template.transition_s * slower
    lead_s = max(0.0, _settling_s(spec, template, outcomes, windows, rate_qps) - transition_s)
    return WindowPlan(
        index=len(outcomes),
        kind="window",
        rate_qps=rate_qps,
        transition_s=lead_s + transition_s,
        window_s=template.window_s * slower,
        settle_before=template.settle_before or (overloaded(windows[-1]) if windows else bool(outcomes)),
        reason=f"window {template.index} of A, {template.rate_qps:.3g} per node: {why}",
        pair=template.index,
        lead_s=lead_s,
    )


def _settling_s(
    spec: Search,
    template: WindowPlan,
    outcomes: Sequence[MeasuredWindow],
    windows: Sequence[MeasuredWindow],
    rate_qps: float,
) -> float:
    """Seconds in which B forgets the load before, as in a search; 0 where it goes on as A did."""
    if not windows:
        least_s = spec.first_transition_s
    elif overloaded(windows[-1]):
        least_s = 2 * spec.transition_s
    else:
        last = windows[-1].plan
        follows = last.pair == template.index - 1 and not windows[-1].void
        if follows and abs(math.log(rate_qps / last.rate_qps)) <= NEAR:
            return 0.0
        least_s = spec.transition_s
    answers = [outcome.counts.median_e2e_s for outcome in outcomes if outcome.counts.median_e2e_s is not None]
    return max(least_s, min(TRANSITION_E2E * answers[-1], spec.settle_s)) if answers else least_s
