"""The search "ramp, then focus": the next segment of load as a function of what was seen so far.

Knows rates per node, counts and the posterior; does no I/O and reads no clock, so that a resumed
run replays it from its outcomes. Source of the constants: the method, sections 4.1 and 4.2, where no other
is named.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from analysis.capacity.limit_posterior import OVERLOADED_SHARE, Prior
from analysis.capacity.posterior import posterior
from analysis.capacity.window_counts import NS, Window, WindowCounts
from conf.specs.bounds import LIMITS
from conf.specs.experiment import Search, Slo

RAMP_START = 1 / 4
"""First ramp rate over the roofline guess (our choice, simulated with guesses wrong by a factor of 3)."""
RAMP_SHARE = 1 / 3
"""Most of a budget that the ramp takes: without windows there is no answer, however well they are placed."""
RAMP_SKIP = 0.2
"""Share of a ramp step whose arrivals are not judged."""
RAMP_E2E = 1.5
"""Median lives of an answer that a ramp step lasts at least: a batch needs them to fill (simulated)."""
RAMP_TTFTS = 2.0
"""TTFT bounds that a ramp step lasts at least: a queue needs them to grow beyond one (our choice)."""
RAMP_END = 1.5
"""The ramp ends when the lowest bad rate is at most so many times the highest good one (simulated)."""
RAMP_LEAST, DWELL_LEAST = 6, 20
"""Requests a window should hold on average; below that rate it is made longer (our choice)."""
FIRST_STEP_SHARE = 1 / 12
"""Most of the ramp's time that its first step takes: `RAMP_LEAST` requests may not need more (our choice)."""
DESCENT = 3.0
"""Divisor of the rate while not even the first step is good."""
VOID_STEPS = 4
"""Ramp steps that may be void in a row: the machine may be busy for some seconds (our choice)."""
BAD_TTFT_SHARE, BAD_TPOT_SHARE, BAD_LEAST = 0.15, 0.20, 4
"""Fewer requests over a limit are no bad step: at 1 QPS one stall of a second delays two of twelve."""
PRIOR_BELOW_RAMP, PRIOR_SD = 0.16, 0.2
"""ln distance and spread of the capacity below the ramp's end: a step of 15 s sees no slow overload. On the
engine model at four pairs of bounds 0.15 to 0.18, sd 0.10 to 0.13."""
RAMP_SEEN = 25
"""Requests of a step from which its chance is part of that spread (our choice)."""
FIRST_BELOW_RAMP = 0.20
FIRST_BELOW_PREDICTION, PREDICTION_SD = 0.05, 0.25
"""ln distance of the first dwell below its guess; a prediction is no overshoot (our choice, simulated)."""
FIRST_BELOW_SESSIONS = 0.15
"""The same where users come back to what is cached: an overload costs the caches too (simulated)."""
OFFSETS = (0.0, -0.03, 0.02, -0.015)
NEAR = 0.06
"""A change of the ln rate up to this is followed without a transition: the load before is counted too."""
CLEAN_SHARE = 0.01
"""With no more over any limit a dwell is clean: it teaches little, and the search climbs."""
CLIMB, MOST_CLIMB, BELOW_HOT = 0.05, 0.4, 0.05
"""The ln step of a climb, doubled from the third clean dwell in a row on; never to a rate that was hot."""
STEP_UP, STEP_DOWN, MOST_DOWN = 0.10, 0.20, 0.8
"""Most that a dwell's ln rate may exceed the last one's that was not clean, or fall below it; a fall is
doubled from the third dwell on where all missed a bound, for nothing is known below all of them."""
MISSED_SHARE = 0.2
"""A dwell with more over a limit missed it, and not by chance."""
TRANSITION_E2E = 2.0
"""Lives of an answer after which a service has forgotten the rate before (the method, 4.1)."""
FIRST_OVER_LATER = 1.5
"""First transition over a later one, whose rates are closer (simulated with answers of two minutes)."""
WINDOW_E2E = 1.5
"""Lives of an answer that a window lasts at least: its own requests and those just before it then share their
steps with no others than these (our choice, simulated with answers of four minutes)."""
ABORT_FROM_S, ABORT_EVERY_S = 10.0, 5.0
ABORT_WAITING_TTFTS, ABORT_WAITING = 3.0, 10
LONG_DWELLS = 5
"""Windows that the budget of long answers holds at least: two leave an end open too often (simulated)."""
RAMP_LOOK_S = 1.0
PLAIN_TTFTS, PLAIN_WAITING = 2.0, 10
"""A queue of so many requests that takes so many TTFT bounds to clear is an overload (our choice)."""
HOLD_TRIES = 2
VOID_SPARES = 2
"""Beyond the budget void dwells are replaced, up to this many times `min_dwells` dwells in all."""


@dataclass(frozen=True, slots=True)
class Start:
    """What is known before the first request, in QPS per node; None is unknown.

    `roofline_qps` is a guess that the ramp approaches from below; `prediction_qps` replaces the ramp where
    the search asks for it, and the first dwell is `first_below` (ln) below it. `ttft_s` is the TTFT bound and
    `answer_s` what an answer of mean length lasts where both bounds are just kept; 0 is unknown.
    """

    roofline_qps: float | None = None
    prediction_qps: float | None = None
    first_below: float = FIRST_BELOW_PREDICTION
    ttft_s: float = 0.0
    answer_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Segment:
    """The load to offer next. `rate_qps` is per node; `settle_before`: first let the waiting queue empty.

    `pair`: after the first `lead_s` it has the arrivals and lengths of that segment, not its own.
    """

    index: int
    kind: Literal["ramp", "dwell", "hold"]
    rate_qps: float
    transition_s: float
    window_s: float
    settle_before: bool
    reason: str
    pair: int | None = None
    lead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A segment that was run. `dwell` holds its counts as known now, weight 0 if void.

    `bad` is the judgement of a ramp step when it ended (`bad_step`); like its `void` it is kept, never
    recomputed: late finishers would change it, and with it the replay. `parts` are the dwells of the nodes
    where each has its own stream: the posterior rests on them, all else on `dwell`.
    """

    segment: Segment
    dwell: WindowCounts
    aborted: bool = False
    void: bool = False
    bad: bool = False
    parts: tuple[WindowCounts, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """No further segment, and why."""

    kind: Literal["budget", "slo_not_met_at_lowest", "above_highest", "void", "actor_lost"]
    reason: str


@dataclass(frozen=True, slots=True)
class _Found:
    """Where the dwells begin: the prior and the first rate."""

    prior: Prior
    first_qps: float
    reason: str


def next_segment(spec: Search, start: Start, outcomes: Sequence[Outcome], elapsed_s: float) -> Segment | Stop:
    """The next segment after `outcomes`, `elapsed_s` of the budget being spent."""
    spec = fitted(spec, start, outcomes)
    begin = _begin(spec, start, outcomes)
    if not isinstance(begin, _Found):
        return begin
    dwells = [outcome for outcome in outcomes if outcome.segment.kind == "dwell"]
    if len(dwells) >= 2 and all(_missed(o) and o.segment.rate_qps <= spec.lowest_qps for o in dwells[-2:]):
        return Stop("slo_not_met_at_lowest", f"over twice at search.lowest_qps={spec.lowest_qps:g} per node")
    segment = _dwell(spec, start, begin, outcomes, dwells)
    valid = sum(not outcome.void for outcome in dwells)
    granted = valid < spec.min_dwells and len(dwells) < VOID_SPARES * spec.min_dwells
    holds = [outcome for outcome in outcomes if outcome.segment.kind == "hold"]
    over_budget = elapsed_s + segment.transition_s + segment.window_s > spec.budget_s
    if not holds and (granted or not over_budget):
        return segment
    if (
        spec.confirm_s
        and valid >= spec.min_dwells
        and (not holds or (holds[-1].void and len(holds) < HOLD_TRIES))
    ):
        return _hold(spec, start, begin, outcomes, dwells)
    return Stop("budget", f"{valid} dwells in {elapsed_s:.0f} s; one more would exceed {spec.budget_s:g} s")


def prior(spec: Search, start: Start, outcomes: Sequence[Outcome]) -> Prior | None:
    """The prior of the posterior over these dwells; None while the ramp is not over."""
    begin = _begin(fitted(spec, start, outcomes), start, outcomes)
    return begin.prior if isinstance(begin, _Found) else None


def fitted(spec: Search, start: Start, outcomes: Sequence[Outcome]) -> Search:
    """The clockwork and the budget for answers that last as long as those of `outcomes`.

    Windows are no shorter than answers, a backlog has the time to be answered, and the budget holds the least
    number of windows: fewer say too little, whatever was asked.
    """
    longest_s = min(_longest_s(outcomes), start.answer_s or math.inf)
    return paced(spec, lasting_s(start, outcomes), longest_s)


def paced(spec: Search, answer_s: float, longest_s: float) -> Search:
    """The search where an answer lasts `answer_s`, and `longest_s` in an overload."""
    window_s = max(spec.window_s, WINDOW_E2E * answer_s)
    windows = max(spec.min_dwells, LONG_DWELLS)
    least_s = max(spec.first_transition_s, TRANSITION_E2E * answer_s) + windows * window_s
    ramped_s = least_s / (1 - RAMP_SHARE)
    longer = window_s > spec.window_s
    budget_s = max(spec.budget_s, ramped_s) if longer else spec.budget_s
    settle_s = max(spec.settle_s, TRANSITION_E2E * longest_s)
    return replace(spec, window_s=window_s, settle_s=settle_s, budget_s=budget_s)


def _longest_s(outcomes: Sequence[Outcome]) -> float:
    return max([outcome.dwell.median_e2e_s or 0.0 for outcome in outcomes], default=0.0)


def lasting_s(start: Start, outcomes: Sequence[Outcome]) -> float:
    """Seconds that an answer lasts, as seen last of a service without an overload; 0 while nothing is known.

    Within the bounds none lasts longer than `Start.answer_s`: what does is part of an overload.
    """
    seen = [o.dwell.median_e2e_s for o in outcomes if not o.bad and o.dwell.median_e2e_s is not None]
    return min(seen[-1], start.answer_s or math.inf) if seen else 0.0


def dwells_of(outcomes: Sequence[Outcome]) -> list[WindowCounts]:
    """What the posterior rests on: all that is not void, node by node where each has its own stream."""
    return [dwell for outcome in outcomes if not outcome.void for dwell in outcome.parts or (outcome.dwell,)]


def bad_step(dwell: WindowCounts) -> bool:
    """True if a ramp step, counted at its end, was too hot: > 15 % over TTFT or > 20 % over TPOT."""
    judged = (
        (dwell.ttft.over, BAD_TTFT_SHARE, dwell.requests),
        (dwell.tpot.over, BAD_TPOT_SHARE, dwell.tpot.determined),
    )
    return any(over > share * seen and (over >= BAD_LEAST or over == seen) for over, share, seen in judged)


def plainly_bad(dwell: WindowCounts, waiting: int, seconds: float, slo: Slo) -> str | None:
    """Why a ramp step is bad whatever the rest of it shows, `dwell` being its first `seconds`; else None.

    Either more requests are over a bound than would make the whole step bad, or the `waiting` ones would take
    several TTFT bounds at the pace at which first tokens came so far.
    """
    whole = dwell.rate_qps * (dwell.planned_end_ns - dwell.window_start_ns) / NS
    limits = ("TTFT", dwell.ttft.over, BAD_TTFT_SHARE), ("TPOT", dwell.tpot.over, BAD_TPOT_SHARE)
    for name, over, share in limits:
        if over >= max(BAD_LEAST, share * whole):
            return f"{over} requests are over the {name} bound"
    clear_s = _clear_s(dwell, waiting, seconds)
    if waiting >= PLAIN_WAITING and clear_s > PLAIN_TTFTS * slo.ttft_p90_ms / 1e3:
        return f"{waiting} requests wait for a first token, worth {clear_s:.0f} s"
    return None


def long_queue(dwell: WindowCounts, waiting: int, slo: Slo) -> bool:
    """True if who comes next would wait beyond the TTFT bound, behind those `waiting` at the end of a step.

    A bound that is as long as the step shows in no request of it.
    """
    return waiting >= BAD_LEAST and _clear_s(dwell, waiting) > slo.ttft_p90_ms / 1e3


def _clear_s(dwell: WindowCounts, waiting: int, seconds: float | None = None) -> float:
    """Seconds until `waiting` requests have a first token, at the pace of the others in `seconds`."""
    return waiting * (dwell.seconds if seconds is None else seconds) / max(dwell.requests - waiting, 1)


def should_abort(window: Window, waiting: int, slo: Slo) -> str | None:
    """Why a window should end now, with so many `waiting` for a first token; None to go on.

    To be asked every 5 s from 10 s into the window. Requests over a limit are no reason: to cut short the
    bursts that are all there is to see biases upwards (simulated).
    """
    queue = ABORT_WAITING_TTFTS * slo.ttft_p90_ms / 1e3 * window.rate_qps + ABORT_WAITING
    if waiting > queue:
        return f"{waiting} requests wait for a first token (bound {queue:.0f})"
    return None


def _begin(spec: Search, start: Start, outcomes: Sequence[Outcome]) -> Segment | Stop | _Found:
    """The next ramp step, or where the dwells begin."""
    if spec.start == "prediction" and start.prediction_qps is not None:
        guess = start.prediction_qps
        first = _within(spec, guess * math.exp(-start.first_below))
        return _Found(Prior(math.log(guess), PREDICTION_SD), first, f"{guess:.3g} is expected")
    return _ramp(spec, start, [outcome for outcome in outcomes if outcome.segment.kind == "ramp"])


def _ramp(spec: Search, start: Start, steps: Sequence[Outcome]) -> Segment | Stop | _Found:
    """The next ramp step; the ramp's end in a bracket, or where its part of the budget is spent."""
    known = [step for step in steps if not step.void]
    good, bad, sure = _bracket(known)
    # As long as everything was void, nothing is known, and the time does not matter.
    step = _within_time(spec, start, steps, _next_step(spec, start, steps, good, bad, sure))
    if step is None:
        return _ramp_end(steps, good, bad, "its part of the budget was spent")
    return step


def _next_step(
    spec: Search, start: Start, steps: Sequence[Outcome], good: float | None, bad: float | None, sure: bool
) -> Segment | Stop | _Found:
    """What would be next if there were time."""
    if steps and steps[-1].void:
        rate = steps[-1].segment.rate_qps
        if len(steps) >= VOID_STEPS and all(step.void for step in steps[-VOID_STEPS:]):
            return Stop(
                "void", f"{VOID_STEPS} ramp steps in a row were void, the last at {rate:.3g} per node"
            )
        return _step(spec, start, steps, rate, "the step was void: repeat")
    if good is None and bad is None:
        return _step(spec, start, steps, _first_rate(spec, start), "first step")
    if bad is None:
        last_qps = steps[-1].segment.rate_qps
        if last_qps >= spec.highest_qps:
            highest = f"search.highest_qps={spec.highest_qps:g} per node was good"
            return Stop("above_highest", f"{highest}; the answer is above")
        return _step(spec, start, steps, last_qps * spec.ramp_factor, "the last step was good")
    if good is None:
        if bad > spec.lowest_qps:
            return _step(spec, start, steps, bad / DESCENT, "go down")
        if sure:
            lowest = f"search.lowest_qps={spec.lowest_qps:g} per node"
            return Stop("slo_not_met_at_lowest", f"bad at {lowest}, and in another step at or near it")
    elif bad / good > RAMP_END:
        return _step(spec, start, steps, math.sqrt(good * bad), "between good and bad")
    elif sure:
        return _ramp_end(steps, good, bad, "")
    return _step(spec, start, steps, bad, "the step was bad, once may be chance: repeat")


def _bracket(steps: Sequence[Outcome]) -> tuple[float | None, float | None, bool]:
    """(highest good rate, lowest bad rate, whether another step was bad near it) of steps not void.

    A later step overrules what an earlier one says against it. A few seconds may hold a third more or less
    than was meant: a step is good at what it really was, and bad at what was meant.
    """
    good: list[float] = []
    bad: list[float] = []
    for step in steps:
        rate = step.segment.rate_qps
        if step.bad:
            good, bad = [lower for lower in good if lower < rate], [*bad, rate]
        else:
            rate = min(rate, math.exp(step.dwell.log_work)) or rate
            good, bad = [*good, rate], [higher for higher in bad if higher > rate]
    lowest = min(bad, default=None)
    near = sum(rate <= (lowest or 0.0) * RAMP_END for rate in bad)
    return max(good, default=None), lowest, near > 1


def _within_time(
    spec: Search, start: Start, steps: Sequence[Outcome], step: Segment | Stop | _Found
) -> Segment | Stop | _Found | None:
    """A step that the ramp's part of the budget has room for; None where it has none for another."""
    if not isinstance(step, Segment) or all(one.void for one in steps):
        return step
    over = _spent_s(spec, steps) + step.transition_s + step.window_s > RAMP_SHARE * spec.budget_s
    return None if over else step


def _spent_s(spec: Search, steps: Sequence[Outcome]) -> float:
    """Seconds from the first step to the end of the last, without waiting for a service that was lost."""
    own_ns = sum(step.dwell.window_end_ns - step.dwell.start_ns for step in steps)
    between = (b.dwell.start_ns - a.dwell.window_end_ns for a, b in pairwise(steps))
    return own_ns / NS + sum(min(max(ns / NS, 0.0), spec.settle_s) for ns in between)


def _first_rate(spec: Search, start: Start) -> float:
    """A part of the guess, but not so little that the first requests would take most of the ramp's time."""
    least = RAMP_LEAST / (FIRST_STEP_SHARE * RAMP_SHARE * spec.budget_s)
    return max(RAMP_START * (start.roofline_qps or 0.0), least)


def _step(spec: Search, start: Start, steps: Sequence[Outcome], wanted: float, why: str) -> Segment:
    """A step so long that a batch fills, and that a queue grows beyond the TTFT bound."""
    rate = _within(spec, wanted)
    last = steps[-1] if steps else None
    answers_s = RAMP_E2E * min(_longest_s(steps), start.answer_s or math.inf)
    least_s = max(spec.ramp_step_s, RAMP_TTFTS * start.ttft_s, answers_s)
    return Segment(
        index=len(steps),
        kind="ramp",
        rate_qps=rate,
        transition_s=RAMP_SKIP * least_s,
        window_s=max((1 - RAMP_SKIP) * least_s, RAMP_LEAST / rate),
        settle_before=last is not None and (last.void or last.bad),
        reason=f"ramp at {rate:.3g} per node: {why}",
    )


def _ramp_end(steps: Sequence[Outcome], good: float | None, bad: float | None, why: str) -> _Found:
    """Where the dwells begin after a ramp: in the middle of what is known, however wide that is.

    Nobody knows how far beyond a rate that was good the capacity lies, or below one that was bad; and a step
    of few requests was offered another rate than was meant, by chance.
    """
    near = [step.dwell.requests for step in steps if not step.void and _within_bracket(step, good, bad)]
    fewest = min(near, default=0)
    chance = math.sqrt(max(0.0, 1 / max(fewest, 1) - 1 / RAMP_SEEN))
    low, high = good or (bad or 0.0) / DESCENT, bad or (good or 0.0) * DESCENT
    value, width = math.sqrt(low * high), math.log(high / low)
    told = [f"good at {good:.3g}" if good else "", f"bad at {bad:.3g}" if bad else "", why]
    return _Found(
        Prior(math.log(value) - PRIOR_BELOW_RAMP, math.hypot(PRIOR_SD, width / 4, chance)),
        value * math.exp(-FIRST_BELOW_RAMP),
        f"the ramp was {', '.join(filter(None, told))}",
    )


def _within_bracket(step: Outcome, good: float | None, bad: float | None) -> bool:
    return (good or 0.0) <= step.segment.rate_qps <= (bad or math.inf)


def _dwell(
    spec: Search, start: Start, begin: _Found, outcomes: Sequence[Outcome], dwells: Sequence[Outcome]
) -> Segment:
    wanted, reason = (begin.first_qps, begin.reason) if not dwells else _focus(begin, dwells)
    rate = _within(spec, wanted)
    return Segment(
        index=len(outcomes),
        kind="dwell",
        rate_qps=rate,
        transition_s=_transition_s(spec, start, outcomes, dwells, rate),
        window_s=max(spec.window_s, DWELL_LEAST / rate),
        settle_before=_overloaded(dwells[-1], rate) if dwells else bool(outcomes),
        reason=reason,
    )


def _hold(
    spec: Search, start: Start, begin: _Found, outcomes: Sequence[Outcome], dwells: Sequence[Outcome]
) -> Segment:
    """The certified rate held: it can veto the answer, and is no part of what the answer rests on."""
    rate = _within(spec, posterior(dwells_of(dwells), begin.prior).certified)
    return Segment(
        index=len(outcomes),
        kind="hold",
        rate_qps=rate,
        transition_s=_transition_s(spec, start, outcomes, dwells, rate),
        window_s=max(spec.confirm_s, DWELL_LEAST / rate),
        settle_before=_overloaded(dwells[-1], rate),
        reason=f"hold at the certified {rate:.3g} per node: it may veto the answer",
    )


def _transition_s(
    spec: Search, start: Start, outcomes: Sequence[Outcome], dwells: Sequence[Outcome], rate: float
) -> float:
    """What the service needs to forget the rate before: two answers' time, nothing for a small change."""
    lasting = TRANSITION_E2E * lasting_s(start, outcomes)
    if not dwells:
        # After a ramp the service is warm, but its batch that of another rate.
        least = spec.transition_s if outcomes else spec.first_transition_s
        lasting *= FIRST_OVER_LATER
    elif _overloaded(dwells[-1], rate):
        least = 2 * spec.transition_s
    elif not dwells[-1].void and abs(math.log(rate / dwells[-1].segment.rate_qps)) <= NEAR:
        return 0.0
    else:
        least = spec.transition_s
    # An overloaded ramp step is over when the queue is empty; its answers say nothing about the rate to come.
    return max(least, lasting)


def hot(outcome: Outcome) -> bool:
    """True if most of a dwell was over a limit."""
    return outcome.aborted or share_over(outcome) > OVERLOADED_SHARE


def _overloaded(last: Outcome, rate: float) -> bool:
    """True if the last dwell left a backlog that one at `rate`, well below it, must not inherit.

    One that was hot by chance is followed without a break: to forget its burst biases upwards (simulated).
    """
    return last.aborted or (hot(last) and math.log(last.segment.rate_qps / rate) > NEAR)


def share_over(outcome: Outcome) -> float:
    """The larger of a dwell's shares over a limit."""
    return max(outcome.dwell.over(limit).share or 0.0 for limit in LIMITS)


def _focus(begin: _Found, dwells: Sequence[Outcome]) -> tuple[float, str]:
    """The posterior's median with a small spread that shows the slope, never far from the last dwell."""
    last = dwells[-1]
    before = last.segment.rate_qps
    capacity = posterior(dwells_of(dwells), begin.prior)
    offset = OFFSETS[(len(dwells) - 1) % len(OFFSETS)]
    wanted = capacity.qps_per_node * math.exp(offset)
    reason = f"posterior {capacity.qps_per_node:.3g} [{capacity.low:.3g}, {capacity.high:.3g}] {offset:+.1%}"
    clean = _in_a_row(dwells, _clean)
    if clean and (higher := _climb(dwells, clean)) > wanted:
        return higher, f"{reason}, climbing: {clean} in a row had next to nothing over a bound"
    if wanted > (most := before * math.exp(MOST_CLIMB if clean else STEP_UP)):
        return most, f"{reason}, held back to a small step up"
    missed = _in_a_row(dwells, _missed)
    down = min(STEP_DOWN * 2 ** max(0, missed - 2), MOST_DOWN)
    if missed == len(dwells) > 2:
        return min(wanted, before * math.exp(-down)), f"{reason}, going down: all {missed} missed a bound"
    if wanted < (least := before * math.exp(-STEP_DOWN)):
        return least, f"{reason}, held back to a small step down"
    return wanted, reason


def _in_a_row(dwells: Sequence[Outcome], fits: Callable[[Outcome], bool]) -> int:
    """How many of the last dwells fit."""
    return next((n for n, outcome in enumerate(reversed(dwells)) if not fits(outcome)), len(dwells))


def _clean(outcome: Outcome) -> bool:
    """True if next to nothing was over a limit."""
    return not (outcome.void or outcome.aborted) and share_over(outcome) <= CLEAN_SHARE


def _missed(outcome: Outcome) -> bool:
    """True if a limit was missed, and not by chance."""
    return not outcome.void and (outcome.aborted or share_over(outcome) > MISSED_SHARE)


def _climb(dwells: Sequence[Outcome], clean: int) -> float:
    """The next rate of a climb that so many clean dwells have begun."""
    step = min(CLIMB * 2 ** max(0, clean - 2), MOST_CLIMB)
    ceilings = [o.segment.rate_qps * math.exp(-BELOW_HOT) for o in dwells if not o.void and hot(o)]
    return min([dwells[-1].segment.rate_qps * math.exp(step), *ceilings])


def _within(spec: Search, rate: float) -> float:
    return min(max(rate, spec.lowest_qps), spec.highest_qps)
