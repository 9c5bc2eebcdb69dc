"""The search "ramp, then focus": the next segment of load as a function of what was seen so far.

Knows rates per node, counts and the posterior; does no I/O and reads no clock, so that a resumed
run replays it from its outcomes. Source of every constant: the method, sections 4.1 and 4.2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.capacity import Prior, posterior
from analysis.dwell import NS, Dwell
from conf.schema import Search, Slo

RAMP_START = 1 / 8
"""First ramp rate over the roofline guess."""
RAMP_SKIP = 0.2
"""Share of a ramp step whose arrivals are not judged."""
RAMP_LEAST, DWELL_LEAST = 6, 20
"""Requests a window should hold on average; below that rate it is made longer (our choice)."""
DESCENT = 2.0
"""Divisor of the rate while not even the first step is good."""
BAD_TTFT_SHARE, BAD_TPOT_SHARE, BAD_TPOT_LEAST = 0.15, 0.20, 4
PRIOR_BELOW_RAMP, PRIOR_SD = 0.08, 0.25
FIRST_BELOW_RAMP = 0.11
FIRST_BELOW_PREDICTION = 0.05
"""ln distance of the first dwell below its guess; a prediction is no overshoot (our choice, simulated)."""
OFFSETS = (0.0, -0.03, 0.02, -0.015)
CLIMB = 0.08
"""ln step while no request at all was over a limit: without one the capacity has no upper end."""
STEP_UP, STEP_UP_CLEAN = 0.10, 0.25
"""Most that a dwell's ln rate may exceed the last one's; the second if that had nothing over a limit."""
TRANSITION_E2E = 2.0
ABORT_FROM_S, ABORT_EVERY_S = 10.0, 5.0
ABORT_SHARE, ABORT_WAITING_TTFTS, ABORT_WAITING = 0.5, 3.0, 10
VOID_SPARES = 2
"""Beyond the budget void dwells are replaced, up to this many times `min_dwells` dwells in all."""


@dataclass(frozen=True, slots=True)
class Start:
    """What is known before the first request, in QPS per node; None is unknown.

    `roofline_qps` is a guess that the ramp approaches from an eighth; `prediction_qps` replaces the
    ramp where the search asks for it.
    """

    roofline_qps: float | None = None
    prediction_qps: float | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """The load to offer next. `rate_qps` is per node; `settle_before`: first let the waiting queue empty."""

    index: int
    kind: Literal["ramp", "dwell"]
    rate_qps: float
    transition_s: float
    window_s: float
    settle_before: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A segment that was run. `dwell` holds its counts as known now, weight 0 if void.

    `bad` is the judgement of a ramp step when it ended (`bad_step`); it is kept, never recomputed,
    because late finishers would change it and with it the replay.
    """

    segment: Segment
    dwell: Dwell
    aborted: bool = False
    void: bool = False
    bad: bool = False


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
    begin = _begin(spec, start, outcomes)
    if isinstance(begin, Stop):
        return begin
    if isinstance(begin, Segment):
        over_budget = elapsed_s + spec.ramp_step_s > spec.budget_s
        return _ramp_out_of_budget(spec, outcomes) if over_budget else begin
    dwells = [outcome for outcome in outcomes if outcome.segment.kind == "dwell"]
    if len(dwells) >= 2 and all(o.aborted and o.segment.rate_qps <= spec.lowest_qps for o in dwells[-2:]):
        return Stop("slo_not_met_at_lowest", f"over twice at search.lowest_qps={spec.lowest_qps:g} per node")
    segment = _dwell(spec, begin, outcomes, dwells)
    valid = sum(not outcome.void for outcome in dwells)
    granted = valid < spec.min_dwells and len(dwells) < VOID_SPARES * spec.min_dwells
    if elapsed_s + segment.transition_s + segment.window_s > spec.budget_s and not granted:
        return Stop(
            "budget", f"{valid} dwells in {elapsed_s:.0f} s; one more would exceed {spec.budget_s:g} s"
        )
    return segment


def prior(spec: Search, start: Start, outcomes: Sequence[Outcome]) -> Prior | None:
    """The prior of the posterior over these dwells; None while the ramp is not over."""
    begin = _begin(spec, start, outcomes)
    return begin.prior if isinstance(begin, _Found) else None


def bad_step(dwell: Dwell) -> bool:
    """True if a ramp step, counted at its end, was too hot: > 15 % over TTFT or > 20 % over TPOT."""
    over_ttft = dwell.ttft.over > BAD_TTFT_SHARE * dwell.requests
    over, paced = dwell.tpot.over, dwell.tpot.determined
    enough = paced >= BAD_TPOT_LEAST or over == paced
    return over_ttft or (enough and over > BAD_TPOT_SHARE * paced)


def should_abort(dwell: Dwell, waiting: int, slo: Slo, now_ns: int) -> str | None:
    """Why the window of `dwell`, counted at `now_ns`, should end now; None to go on.

    `waiting` requests have no first token yet. To be asked every 5 s from 10 s into the window.
    """
    if now_ns < dwell.window_start_ns + ABORT_FROM_S * NS:
        return None
    planned = dwell.rate_qps * (dwell.planned_end_ns - dwell.window_start_ns) / NS
    over = max(dwell.ttft.over, dwell.tpot.over)
    if over > ABORT_SHARE * planned:
        return f"{over} requests over a limit already, of about {planned:.0f} planned"
    queue = ABORT_WAITING_TTFTS * slo.ttft_p90_ms / 1e3 * dwell.rate_qps + ABORT_WAITING
    if waiting > queue:
        return f"{waiting} requests wait for a first token (bound {queue:.0f})"
    return None


def _begin(spec: Search, start: Start, outcomes: Sequence[Outcome]) -> Segment | Stop | _Found:
    """The next ramp step, or where the dwells begin."""
    if spec.start == "prediction" and start.prediction_qps is not None:
        guess = start.prediction_qps
        first = _within(spec, guess * math.exp(-FIRST_BELOW_PREDICTION))
        return _Found(Prior(math.log(guess), PRIOR_SD), first, f"the model predicts {guess:.3g}")
    return _ramp(spec, start, [outcome for outcome in outcomes if outcome.segment.kind == "ramp"])


def _ramp(spec: Search, start: Start, steps: Sequence[Outcome]) -> Segment | Stop | _Found:
    if steps and steps[-1].void:
        rate = steps[-1].segment.rate_qps
        if len(steps) > 1 and steps[-2].void:
            return Stop("void", f"two ramp steps in a row were void, the last at {rate:.3g} per node")
        return _step(spec, steps, rate, settle=True, why="the step was void: repeat")
    good, bad, doubted = _brackets([step for step in steps if not step.void])
    if doubted is not None:
        return _step(spec, steps, doubted, settle=True, why="the step was bad, once may be chance: repeat")
    if good is None and bad is None:
        first = RAMP_START * start.roofline_qps if start.roofline_qps else spec.lowest_qps
        return _step(spec, steps, _within(spec, first), settle=False, why="first step")
    if good is None and bad is not None:
        if bad <= spec.lowest_qps:
            return Stop(
                "slo_not_met_at_lowest", f"bad twice at search.lowest_qps={spec.lowest_qps:g} per node"
            )
        return _step(spec, steps, _within(spec, bad / DESCENT), settle=True, why="go down")
    assert good is not None
    higher = _within(spec, good * spec.ramp_factor)
    if bad is not None and higher >= bad * (1 - 1e-9):
        return _ramp_end(math.sqrt(good * bad), good, bad)
    if good >= spec.highest_qps:
        return Stop(
            "above_highest", f"search.highest_qps={spec.highest_qps:g} per node was good; the answer is above"
        )
    return _step(spec, steps, higher, settle=False, why="the last step was good")


def _brackets(steps: Sequence[Outcome]) -> tuple[float | None, float | None, float | None]:
    """(highest good rate, lowest rate bad twice, rate bad once and to be repeated) of steps not void."""
    good = bad = doubted = None
    for step in steps:
        rate = step.segment.rate_qps
        if not step.bad:
            good, doubted = rate, None
        elif doubted == rate:
            bad, doubted = rate, None
        else:
            doubted = rate
    return good, bad, doubted


def _step(spec: Search, steps: Sequence[Outcome], rate: float, *, settle: bool, why: str) -> Segment:
    return Segment(
        index=len(steps),
        kind="ramp",
        rate_qps=rate,
        transition_s=RAMP_SKIP * spec.ramp_step_s,
        window_s=max((1 - RAMP_SKIP) * spec.ramp_step_s, RAMP_LEAST / rate),
        settle_before=settle,
        reason=f"ramp at {rate:.3g} per node: {why}",
    )


def _ramp_end(value: float, good: float, bad: float) -> _Found:
    return _Found(
        Prior(math.log(value) - PRIOR_BELOW_RAMP, PRIOR_SD),
        value * math.exp(-FIRST_BELOW_RAMP),
        f"the ramp was good at {good:.3g} and bad twice at {bad:.3g}",
    )


def _ramp_out_of_budget(spec: Search, outcomes: Sequence[Outcome]) -> Stop:
    good, _, _ = _brackets(outcomes)
    last = "no step was good" if good is None else f"{good:.3g} QPS per node was good"
    return Stop(
        "budget", f"the ramp did not end within search.budget_s={spec.budget_s:g}: {last}; raise the budget"
    )


def _dwell(spec: Search, begin: _Found, outcomes: Sequence[Outcome], dwells: Sequence[Outcome]) -> Segment:
    after_abort = bool(dwells) and dwells[-1].aborted
    wanted, reason = (begin.first_qps, begin.reason) if not dwells else _focus(begin, dwells)
    rate = _within(spec, wanted)
    transition = spec.first_transition_s if not dwells else spec.transition_s * (2 if after_abort else 1)
    answers = [outcome.dwell.median_e2e_s for outcome in outcomes if outcome.dwell.median_e2e_s is not None]
    if answers:
        transition = max(transition, min(TRANSITION_E2E * answers[-1], spec.settle_s))
    return Segment(
        index=len(outcomes),
        kind="dwell",
        rate_qps=rate,
        transition_s=transition,
        window_s=max(spec.window_s, DWELL_LEAST / rate),
        settle_before=after_abort or (not dwells and bool(outcomes)),
        reason=reason,
    )


def _focus(begin: _Found, dwells: Sequence[Outcome]) -> tuple[float, str]:
    """The posterior's median with a small spread that shows the slope, never far above the last dwell."""
    last = dwells[-1]
    capacity = posterior([outcome.dwell for outcome in dwells if not outcome.void], begin.prior)
    offset = OFFSETS[(len(dwells) - 1) % len(OFFSETS)]
    wanted = capacity.qps_per_node * math.exp(offset)
    clean = not (last.dwell.ttft.over or last.dwell.tpot.over)
    if not any(outcome.dwell.ttft.over or outcome.dwell.tpot.over for outcome in dwells):
        highest = max(outcome.segment.rate_qps for outcome in dwells)
        wanted = max(wanted, highest * math.exp(CLIMB))
    most = last.segment.rate_qps * math.exp(STEP_UP_CLEAN if clean else STEP_UP)
    reason = f"posterior {capacity.qps_per_node:.3g} [{capacity.low:.3g}, {capacity.high:.3g}] {offset:+.1%}"
    if wanted > most:
        return most, reason + ", held back to a small step up"
    return wanted, reason


def _within(spec: Search, rate: float) -> float:
    return min(max(rate, spec.lowest_qps), spec.highest_qps)
