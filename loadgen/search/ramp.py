"""The ramp of a search: rates that rise until the capacity is bracketed, or the ramp's budget is spent.

Source of the constants: the method, sections 4.1 and 4.2, where no other is named.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from analysis.capacity.limit_posterior import Prior
from analysis.capacity.window_counts import NS
from conf.specs.experiment import Search
from loadgen.search.pacing import RAMP_LEAST, RAMP_SHARE, longest_answer_s, within_bounds
from loadgen.search.window_plan import FirstWindow, MeasuredWindow, Start, Stop, WindowPlan

RAMP_START = 1 / 4
"""First ramp rate over the roofline guess (our choice, simulated with guesses wrong by a factor of 3)."""
RAMP_SKIP = 0.2
"""Share of a ramp step whose arrivals are not judged."""
RAMP_E2E = 1.5
"""Shortest ramp step in median lives of an answer: a batch needs them to fill (simulated)."""
RAMP_TTFTS = 2.0
"""Shortest ramp step in TTFT bounds: a queue needs them to grow beyond one (our choice)."""
RAMP_END = 1.5
"""The ramp ends when the lowest bad rate is at most so many times the highest good one (simulated)."""
FIRST_STEP_SHARE = 1 / 12
"""Largest share of the ramp's time for its first step of `RAMP_LEAST` requests (our choice)."""
DESCENT = 3.0
"""Divisor of the rate while not even the first step is good."""
VOID_STEPS = 4
"""Ramp steps that may be void in a row: the machine may be busy for some seconds (our choice)."""
PRIOR_BELOW_RAMP, PRIOR_SD = 0.16, 0.3
"""ln distance and spread of the capacity below the ramp's end: a step of 15 s sees no slow overload. On the
engine model at four pairs of bounds 0.15 to 0.18, sd 0.10 to 0.13."""
RAMP_SEEN = 25
"""Requests of a step from which that spread holds its chance (our choice)."""
FIRST_BELOW_RAMP = 0.20


def ramp(spec: Search, start: Start, steps: Sequence[MeasuredWindow]) -> WindowPlan | Stop | FirstWindow:
    """The next ramp step; or the first window, once the capacity is bracketed or the ramp's budget is
    spent."""
    known = [step for step in steps if not step.void]
    good, bad, confirmed = _bracket(known)
    step = _next_step(spec, start, steps, good, bad, confirmed)
    # As long as everything was void, nothing is known, and the time does not matter.
    if known and isinstance(step, WindowPlan):
        spent_s = _spent_s(spec, steps) + step.transition_s + step.window_s
        if spent_s > RAMP_SHARE * spec.budget_s:
            return _ramp_end(steps, good, bad, "its part of the budget was spent")
    return step


def _next_step(
    spec: Search,
    start: Start,
    steps: Sequence[MeasuredWindow],
    good: float | None,
    bad: float | None,
    confirmed: bool,
) -> WindowPlan | Stop | FirstWindow:
    if steps and steps[-1].void:
        rate = steps[-1].plan.rate_qps
        if len(steps) >= VOID_STEPS and all(step.void for step in steps[-VOID_STEPS:]):
            return Stop(
                "void", f"{VOID_STEPS} ramp steps in a row were void, the last at {rate:.3g} per node"
            )
        return _step(spec, start, steps, rate, "the step was void: repeat")
    if good is None and bad is None:
        # Fast enough for the first requests not to take most of the ramp's time.
        least = RAMP_LEAST / (FIRST_STEP_SHARE * RAMP_SHARE * spec.budget_s)
        return _step(spec, start, steps, max(RAMP_START * (start.roofline_qps or 0.0), least), "first step")
    if bad is None:
        last_qps = steps[-1].plan.rate_qps
        if last_qps >= spec.highest_qps:
            highest = f"search.highest_qps={spec.highest_qps:g} per node was good"
            return Stop("above_highest", f"{highest}; the answer is above")
        return _step(spec, start, steps, last_qps * spec.ramp_factor, "the last step was good")
    if good is None:
        if bad > spec.lowest_qps:
            return _step(spec, start, steps, bad / DESCENT, "go down")
        if confirmed:
            lowest = f"search.lowest_qps={spec.lowest_qps:g} per node"
            return Stop("slo_not_met_at_lowest", f"bad at {lowest}, and in another step at or near it")
    elif bad / good > RAMP_END:
        return _step(spec, start, steps, math.sqrt(good * bad), "between good and bad")
    elif confirmed:
        return _ramp_end(steps, good, bad, "")
    return _step(spec, start, steps, bad, "the step was bad, once may be chance: repeat")


def _bracket(steps: Sequence[MeasuredWindow]) -> tuple[float | None, float | None, bool]:
    """(highest good rate, lowest bad rate, whether another step was bad near it) of steps not void.

    A later step overrules what an earlier one says against it. A few seconds may hold a third more or less
    than was meant: a step is good at what it really was, and bad at what was meant.
    """
    good: list[float] = []
    bad: list[float] = []
    for step in steps:
        rate = step.plan.rate_qps
        if step.bad:
            good, bad = [lower for lower in good if lower < rate], [*bad, rate]
        else:
            rate = min(rate, math.exp(step.counts.log_work)) or rate
            good, bad = [*good, rate], [higher for higher in bad if higher > rate]
    lowest = min(bad, default=None)
    near = sum(rate <= (lowest or 0.0) * RAMP_END for rate in bad)
    return max(good, default=None), lowest, near > 1


def _spent_s(spec: Search, steps: Sequence[MeasuredWindow]) -> float:
    """Seconds from the first step to the end of the last, without the wait for a lost service."""
    own_ns = sum(step.counts.window_end_ns - step.counts.start_ns for step in steps)
    between = (b.counts.start_ns - a.counts.window_end_ns for a, b in pairwise(steps))
    return own_ns / NS + sum(min(max(ns / NS, 0.0), spec.settle_s) for ns in between)


def _step(spec: Search, start: Start, steps: Sequence[MeasuredWindow], wanted: float, why: str) -> WindowPlan:
    """A step long enough for a batch to fill and for a queue to grow beyond the TTFT bound."""
    rate = within_bounds(spec, wanted)
    last = steps[-1] if steps else None
    answers_s = RAMP_E2E * min(longest_answer_s(steps), start.answer_s or math.inf)
    least_s = max(spec.ramp_step_s, RAMP_TTFTS * start.ttft_s, answers_s)
    return WindowPlan(
        index=len(steps),
        kind="ramp",
        rate_qps=rate,
        transition_s=RAMP_SKIP * least_s,
        window_s=max((1 - RAMP_SKIP) * least_s, RAMP_LEAST / rate),
        settle_before=last is not None and (last.void or last.bad),
        reason=f"ramp at {rate:.3g} per node: {why}",
    )


def _ramp_end(
    steps: Sequence[MeasuredWindow], good: float | None, bad: float | None, why: str
) -> FirstWindow:
    """The first window after a ramp: in the middle of what is known, however wide that is.

    Nobody knows how far beyond a rate that was good the capacity lies, or below one that was bad; and a step
    of few requests was offered another rate than was meant, by chance.
    """
    lowest, highest = good or 0.0, bad or math.inf
    near = [s.counts.requests for s in steps if not s.void and lowest <= s.plan.rate_qps <= highest]
    fewest = min(near, default=0)
    chance = math.sqrt(max(0.0, 1 / max(fewest, 1) - 1 / RAMP_SEEN))
    low, high = good or (bad or 0.0) / DESCENT, bad or (good or 0.0) * DESCENT
    value, width = math.sqrt(low * high), math.log(high / low)
    parts = [f"good at {good:.3g}" if good else "", f"bad at {bad:.3g}" if bad else "", why]
    return FirstWindow(
        Prior(math.log(value) - PRIOR_BELOW_RAMP, math.hypot(PRIOR_SD, width / 4, chance)),
        value * math.exp(-FIRST_BELOW_RAMP),
        f"the ramp was {', '.join(filter(None, parts))}",
    )
