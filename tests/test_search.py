"""The search: its rules one by one, and whole searches on engines of known capacity."""

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.capacity import posterior
from analysis.dwell import LOOK_AHEAD, LOOK_BACK, NS, Dwell, LimitCount
from analysis.root import Prior
from conf.schema import Search, Slo
from loadgen import search
from loadgen.search import Outcome, Start
from tests.benchmarks.search_accuracy import searched, truths

S2 = Slo("s2", ttft_p90_ms=2000.0, tpot_p90_ms=60.0)
SPEC = Search("test", budget_s=900.0)


def done(segment, over=0, *, bad=False, far=False, void=False, aborted=False, e2e_s=None):
    """The outcome of a segment in whose 300 requests `over` were over the TPOT limit."""
    spread = tuple(int(part) for part in np.diff(np.round(np.linspace(0, over, 10))))
    seen = (33, 33, 34) * 3
    window = (segment.index, segment.kind, segment.rate_qps, 1, 0, 0, 45 * NS, 45 * NS, aborted)
    dwell = Dwell(
        *window,
        weight=0.0 if void else 1.0,
        requests=300,
        log_work=math.log(segment.rate_qps),
        load=(segment.rate_qps,) * (LOOK_BACK + 9 + LOOK_AHEAD),
        median_e2e_s=e2e_s,
        ttft=LimitCount(0, 300, (0,) * 9, seen),
        tpot=LimitCount(over, 300, spread, seen),
    )
    return Outcome(segment, dwell, aborted=aborted, void=void, bad=bad, far=far)


def played(start, *events, spec=SPEC, elapsed_s=0.0):
    """All segments of a search whose outcomes were `events`, and what it wants next."""
    outcomes = []
    for event in events:
        step = search.next_segment(spec, start, outcomes, elapsed_s)
        outcomes.append(done(step, **event))
    return [outcome.segment for outcome in outcomes], search.next_segment(spec, start, outcomes, elapsed_s)


GOOD, FAR, BAD, VOID = {}, {"far": True}, {"bad": True}, {"void": True}
RAMPED = (GOOD, GOOD, BAD, BAD)
GUESS = Start(roofline_qps=8.0)


def test_the_ramp_climbs_from_an_eighth_of_the_guess():
    steps, following = played(GUESS, GOOD, GOOD)
    assert [step.rate_qps for step in (*steps, following)] == [1.0, 1.25, 1.5625]
    assert (following.kind, following.transition_s, following.window_s) == ("ramp", 3.0, 12.0)
    assert not following.settle_before
    assert played(Start())[1].rate_qps == SPEC.lowest_qps


def test_far_below_the_bounds_the_ramp_is_fast_and_above_a_bad_step_no_more():
    steps, _ = played(GUESS, FAR, FAR, BAD, BAD, FAR, BAD, BAD)
    assert [step.rate_qps for step in steps] == pytest.approx([1, 1.6, 2.56, 2.56, 2.0, 2.5, 2.5])


@pytest.mark.parametrize("event", [BAD, VOID])
def test_a_bad_step_is_repeated_once_after_settling(event):
    _, again = played(GUESS, GOOD, event)
    assert (again.rate_qps, again.settle_before) == (1.25, True)
    _, up = played(GUESS, GOOD, event, GOOD)
    assert (up.rate_qps, up.settle_before) == (1.5625, False)


def test_a_second_bad_step_ends_the_ramp_between_good_and_bad():
    _, first = played(GUESS, *RAMPED)
    ramp = math.sqrt(1.25 * 1.5625)
    assert first.kind == "dwell" and first.index == 4
    assert first.rate_qps == pytest.approx(ramp * math.exp(-0.2))
    assert (first.transition_s, first.window_s, first.settle_before) == (30.0, 45.0, True)
    steps, _ = played(GUESS, *RAMPED)
    prior = search.prior(SPEC, GUESS, [done(s, **e) for s, e in zip(steps, RAMPED, strict=True)])
    assert (prior.centre, prior.sd) == (pytest.approx(math.log(ramp) - 0.16), 0.2)
    assert search.prior(SPEC, GUESS, [done(steps[0])]) is None


def test_a_ramp_that_starts_too_hot_goes_down_and_then_closes_in():
    steps, first = played(GUESS, BAD, BAD, BAD, BAD, GOOD, GOOD, GOOD, GOOD)
    rates = [1, 1, 0.5, 0.5, 0.25, 0.3125, 0.390625, 0.48828125]
    assert [step.rate_qps for step in steps] == pytest.approx(rates)
    assert [step.settle_before for step in steps[:5]] == [False, True, True, True, True]
    assert first.rate_qps == pytest.approx(math.sqrt(rates[-1] * 0.5) * math.exp(-0.2))


def test_it_gives_up_below_the_lowest_rate_and_above_the_highest():
    spec = replace(SPEC, lowest_qps=0.6, highest_qps=1.4)
    steps, stop = played(GUESS, BAD, BAD, BAD, BAD, spec=spec)
    assert steps[-1].rate_qps == 0.6 and stop.kind == "slo_not_met_at_lowest"
    steps, stop = played(GUESS, GOOD, GOOD, GOOD, spec=spec)
    assert steps[-1].rate_qps == 1.4 and stop.kind == "above_highest"


def test_a_ramp_out_of_budget_stops_with_the_last_good_rate():
    steps, _ = played(GUESS, GOOD, GOOD)
    stop = search.next_segment(SPEC, GUESS, [done(step) for step in steps], 886.0)
    assert stop.kind == "budget" and "1.25 QPS per node was good" in stop.reason


def test_a_prediction_replaces_the_ramp_only_where_asked_and_known():
    quick = replace(SPEC, start="prediction")
    known = Start(roofline_qps=8.0, prediction_qps=6.0)
    _, first = played(known, spec=quick)
    assert first.kind == "dwell" and first.rate_qps == pytest.approx(6 * math.exp(-0.05))
    assert (first.transition_s, first.settle_before) == (30.0, False)
    assert played(replace(known, first_below=0.15), spec=quick)[1].rate_qps == pytest.approx(
        6 * math.exp(-0.15)
    )
    assert search.prior(quick, known, []).centre == math.log(6)
    assert played(known)[1].kind == played(GUESS, spec=quick)[1].kind == "ramp"


def test_dwells_spread_around_the_posterior_median_and_follow_without_a_gap():
    steps, following = played(GUESS, *RAMPED, *[{"over": 30}] * 6)
    dwells = [done(step, over=30).dwell for step in steps[4:]]
    belief = Prior(math.log(math.sqrt(1.25 * 1.5625)) - 0.16, 0.2)
    for n, step in enumerate([*steps[5:], following], start=1):
        median = posterior(dwells[:n], belief).qps_per_node
        offset = (0.0, -0.03, 0.02, -0.015)[(n - 1) % 4]
        assert step.rate_qps == pytest.approx(median * math.exp(offset))
        near = abs(math.log(step.rate_qps / dwells[n - 1].rate_qps)) <= 0.06
        assert (step.transition_s, step.settle_before) == (0.0 if near else 15.0, False)


LOW = replace(SPEC, start="prediction")


def after_dwells(*events, rate_qps=4.0):
    """What follows dwells that were all at one rate, far below the prediction."""
    first = replace(search.next_segment(LOW, FORESEEN, [], 0.0), rate_qps=rate_qps)
    outcomes = [done(replace(first, index=i), **event) for i, event in enumerate(events)]
    return search.next_segment(LOW, FORESEEN, outcomes, 0.0)


FORESEEN = Start(prediction_qps=8.0)


@pytest.mark.parametrize(("over", "most"), [(0, 0.4), (6, 0.10)])
def test_a_step_up_is_small_unless_nothing_was_over(over, most):
    raised = after_dwells({"over": over})
    assert raised.rate_qps == pytest.approx(4 * math.exp(most))
    assert "small step up" in raised.reason and raised.transition_s == 15.0


def test_a_step_down_is_never_a_plunge():
    lowered = after_dwells({"over": 280}, rate_qps=12.0)
    assert lowered.rate_qps == pytest.approx(12 * math.exp(-0.2))
    assert "small step down" in lowered.reason


def test_clean_dwells_are_climbed_ever_faster_but_never_to_what_was_hot():
    def climbed(*events):
        segments, following = played(GUESS, *RAMPED, *events)
        return math.log(following.rate_qps / segments[-1].rate_qps), following

    steps = [climbed(*[GOOD] * n) for n in (3, 4, 5)]
    assert [step for step, _ in steps] == pytest.approx([0.1, 0.2, 0.4])
    assert all("climbing" in segment.reason for _, segment in steps)
    segments, following = played(GUESS, *RAMPED, {"over": 200}, *[GOOD] * 6)
    assert max(s.rate_qps for s in segments[5:]) <= segments[4].rate_qps * math.exp(-0.05) * 1.0001
    assert following.rate_qps <= segments[4].rate_qps


def test_after_a_hot_dwell_it_settles_and_waits_twice_as_long():
    for hot in ({"over": 250, "aborted": True}, {"over": 200}):
        _, following = played(GUESS, *RAMPED, GOOD, hot)
        assert (following.settle_before, following.transition_s) == (True, 30.0)


def test_the_transition_lasts_two_answers_but_not_for_ever():
    assert after_dwells({"e2e_s": 20.0}).transition_s == 40.0
    assert after_dwells({"e2e_s": 900.0}).transition_s == SPEC.settle_s


def test_the_budget_ends_the_dwells_but_grants_the_least_number():
    events = (*RAMPED, *[GOOD] * 6)
    outcomes = [done(s, **e) for s, e in zip(played(GUESS, *events)[0], events, strict=True)]
    assert search.next_segment(SPEC, GUESS, outcomes, 839.0).kind == "dwell"
    assert search.next_segment(SPEC, GUESS, outcomes, 841.0).kind == "budget"
    assert search.next_segment(SPEC, GUESS, outcomes[:-1], 5000.0).kind == "dwell"
    void = [replace(o, void=o.segment.kind == "dwell") for o in outcomes]
    assert search.next_segment(SPEC, GUESS, void, 5000.0).kind == "dwell"
    assert search.next_segment(SPEC, GUESS, [*void, *void[4:]], 5000.0).kind == "budget"


def test_a_void_dwell_does_not_move_the_posterior():
    events = (*RAMPED, {"over": 30}, GOOD)
    *outcomes, last = [done(s, **e) for s, e in zip(played(GUESS, *events)[0], events, strict=True)]
    void = [done(last.segment, over=over, void=True, aborted=True) for over in (0, 300)]
    few, many = (search.next_segment(SPEC, GUESS, [*outcomes, outcome], 0.0) for outcome in void)
    assert few == many


def window_of(requests, ttft, tpot, paced):
    return Dwell(
        0, "dwell", 8.0, 1, 0, 0, 45 * NS, 45 * NS,
        requests=requests,
        ttft=LimitCount(ttft, requests, (), ()),
        tpot=LimitCount(tpot, paced, (), ()),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dwell", "bad"),
    [
        (window_of(100, 15, 0, 100), False),
        (window_of(100, 16, 0, 100), True),
        (window_of(100, 0, 20, 100), False),
        (window_of(100, 0, 21, 100), True),
        (window_of(12, 3, 0, 12), False),
        (window_of(12, 4, 0, 12), True),
        (window_of(3, 3, 0, 3), True),
        (window_of(100, 0, 2, 3), False),
        (window_of(100, 0, 3, 3), True),
        (window_of(100, 0, 4, 4), True),
        (window_of(0, 0, 0, 0), False),
    ],
)
def test_bad_steps(dwell, bad):
    assert search.bad_step(dwell) is bad


@pytest.mark.parametrize(
    ("waiting", "stops"),
    [(58, False), (59, True)],
)
def test_aborts(waiting, stops):
    answer = search.should_abort(window_of(200, 200, 0, 0), waiting, S2)
    assert (answer is not None) is stops


@pytest.mark.slow
@pytest.mark.parametrize(("words", "runs"), [(("search=quick",), 5), (("search=standard",), 2)])
def test_whole_searches_find_what_brute_force_finds(words, runs):
    """A broken search is far off; how good a sound one is, search_accuracy.py measures over 200 runs."""
    found = [searched("S2", seed, *words) for seed in range(runs)]
    error = np.log([each.estimate / truths()["S2"] for each in found])
    assert abs(error.mean()) < 0.03
    assert np.mean([each.low <= truths()["S2"] <= each.high for each in found]) >= 0.75
    assert np.mean([each.certified > truths()["S2"] for each in found]) <= 0.5
