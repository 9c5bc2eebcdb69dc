"""loadgen/search/policy.py: the rules of the search, and whole searches on engines of known capacity."""

import math
from dataclasses import dataclass, replace

import pytest

from analysis.capacity.posterior import posterior
from analysis.capacity.rules import WindowEvidence
from analysis.capacity.window_counts import NS
from conf import load
from conf.specs.bounds import allowed_over
from conf.specs.experiment import Search, Slo
from loadgen.search import policy
from loadgen.search.pacing import fitted
from loadgen.search.policy import MOST_ABOVE
from loadgen.search.window_plan import MeasuredWindow, Start, Stop, bad_step, should_abort
from tests.support.search.search_windows import limit_count, window, window_of

S2 = Slo("s2", ttft_p90_ms=2000.0, tpot_p90_ms=60.0)
SPEC = Search("test", budget_s=900.0)


def done(
    plan, over=0, *, bad=False, void=False, aborted=False, e2e_s=None, start_s=0.0, offered=1.0, loss=""
):
    """The outcome of a window in whose 300 requests `over` were over the TPOT limit.

    It began at `start_s`, and `offered` times its load came. In it the service was lost by `loss`.
    """
    start_ns, begin_ns = (int(at_s * NS) for at_s in (start_s, start_s + plan.transition_s))
    end_ns = begin_ns + int(plan.window_s * NS)
    counts = window(
        plan.rate_qps,
        {"ttft": limit_count(0, 300), "tpot": limit_count(over, 300)},
        300,
        plan.index,
        **{"kind": plan.kind, "aborted": aborted, "start_ns": start_ns, "window_start_ns": begin_ns},
        **{"window_end_ns": end_ns, "planned_end_ns": end_ns, "median_e2e_s": e2e_s},
        weight=0.0 if void else 1.0,
        log_work=math.log(plan.rate_qps * offered),
    )
    return MeasuredWindow(plan, counts, void=void, bad=bad, evidence=WindowEvidence(loss=loss))


def played(start, *events, spec=SPEC, elapsed_s=0.0):
    """All windows of a search whose outcomes were `events`, and what it wants next."""
    outcomes, now_s = [], 0.0
    for event in events:
        step = policy.next_window(spec, start, outcomes, elapsed_s)
        outcomes.append(done(step, start_s=now_s, **event))
        now_s += step.transition_s + step.window_s
    return [outcome.plan for outcome in outcomes], policy.next_window(spec, start, outcomes, elapsed_s)


GOOD, BAD, VOID = {}, {"bad": True}, {"void": True}
RAMPED = (GOOD, BAD, GOOD, BAD)
GUESS = Start(roofline_qps=8.0)


def test_the_ramp_doubles_from_a_quarter_of_the_guess():
    steps, following = played(GUESS, GOOD, GOOD)
    assert [step.rate_qps for step in (*steps, following)] == [2.0, 4.0, 8.0]
    assert (following.kind, following.transition_s, following.window_s) == ("ramp", 0.8, 3.2)
    assert not following.settle_before


def test_a_ramp_does_not_begin_so_low_that_its_first_requests_take_all_its_time():
    quick = replace(SPEC, budget_s=240.0)
    assert played(Start(), spec=quick)[1].rate_qps == pytest.approx(0.9)
    # Of a low rate a budget counts the requests: it is up to eight times as long.
    assert played(Start(roofline_qps=0.01), spec=quick)[1].rate_qps == pytest.approx(0.9 / 8)
    assert played(Start(), spec=replace(quick, lowest_qps=2.0))[1].rate_qps == 2.0


def test_a_ramp_step_lasts_for_answers_and_for_the_ttft_bound():
    assert played(GUESS, {"e2e_s": 10.0})[1].window_s == pytest.approx(12.0)
    assert played(replace(GUESS, ttft_s=5.0))[1].window_s == pytest.approx(8.0)
    held_up = {"void": True, "loss": "no answer", "e2e_s": 100.0}
    assert played(GUESS, {"e2e_s": 10.0}, held_up)[1].window_s == pytest.approx(12.0)


@pytest.mark.parametrize("event", [BAD, VOID])
def test_after_a_bad_or_void_step_it_settles(event):
    _, after = played(GUESS, GOOD, event)
    assert after.settle_before
    _, later = played(GUESS, GOOD, event, GOOD)
    assert not later.settle_before


def test_between_good_and_bad_the_ramp_closes_in():
    steps, first = played(GUESS, *RAMPED)
    assert [step.rate_qps for step in steps] == pytest.approx([2, 4, math.sqrt(8), 4])
    ramp = math.sqrt(math.sqrt(8) * steps[-1].rate_qps)
    assert first.kind == "window" and first.index == 4
    assert first.rate_qps == pytest.approx(ramp * math.exp(-0.2))
    assert (first.transition_s, first.window_s, first.settle_before) == (15.0, 45.0, True)
    outcomes = [done(step, **event) for step, event in zip(steps, RAMPED, strict=True)]
    prior, width = policy.prior(SPEC, GUESS, outcomes), math.log(steps[-1].rate_qps / math.sqrt(8))
    assert prior.centre == pytest.approx(math.log(ramp) - 0.16)
    assert prior.sd == pytest.approx(math.hypot(0.3, width / 4))
    assert policy.prior(SPEC, GUESS, outcomes[:1]) is None


def test_a_single_bad_step_is_repeated_before_the_ramp_ends():
    spec = replace(SPEC, ramp_factor=1.4)
    _, again = played(GUESS, GOOD, BAD, spec=spec)
    assert (again.rate_qps, again.settle_before) == (2.8, True) and "once may be chance" in again.reason
    _, up = played(GUESS, GOOD, BAD, GOOD, spec=spec)
    assert (up.kind, up.rate_qps) == ("ramp", pytest.approx(2.8 * 1.4))
    assert played(GUESS, GOOD, BAD, BAD, spec=spec)[1].kind == "window"
    # Two bad steps near each other bear each other out.
    assert played(GUESS, GOOD, BAD, BAD)[1].kind == "window"


def test_a_good_step_is_good_at_the_load_that_it_really_had():
    _, first = played(GUESS, GOOD, {"offered": 0.5}, BAD, BAD, BAD)
    steps, _ = played(GUESS, GOOD, {"offered": 0.5}, BAD)
    assert [step.rate_qps for step in steps] == [2.0, 4.0, 8.0]
    assert first.rate_qps < 4.0


def test_a_ramp_that_starts_too_hot_goes_down_and_then_closes_in():
    steps, following = played(GUESS, BAD, BAD, GOOD)
    assert [step.rate_qps for step in steps] == pytest.approx([2, 2 / 3, 2 / 9])
    assert [step.settle_before for step in steps] == [False, True, True]
    assert following.rate_qps == pytest.approx(2 / 9 * math.sqrt(3))


def test_it_gives_up_below_the_lowest_rate_and_above_the_highest():
    spec = replace(SPEC, lowest_qps=1.6, highest_qps=5.4)
    steps, stop = played(GUESS, BAD, BAD, spec=spec)
    assert [step.rate_qps for step in steps] == [2.0, 1.6] and stop.kind == "slo_not_met_at_lowest"
    for offered in (1.0, 0.8):
        steps, stop = played(GUESS, *[{"offered": offered}] * 3, spec=spec)
        assert steps[-1].rate_qps == 5.4 and stop.kind == "above_highest"


def test_void_steps_are_repeated_but_not_for_ever():
    steps, following = played(GUESS, GOOD, VOID, VOID, VOID, GOOD)
    assert [step.rate_qps for step in (*steps, following)] == [2.0, 4.0, 4.0, 4.0, 4.0, 8.0]
    assert played(GUESS, GOOD, *[VOID] * 4)[1].kind == "void"


@dataclass
class Service:
    """One that is overloaded above `capacity_qps`, and clears its queue while nothing is offered."""

    capacity_qps: float
    e2e_s: float = 3.0

    def searched(self, spec, start):
        """(steps of the ramp, seconds until the first window is offered, number of windows) of a search."""
        outcomes, now_s, backlog = [], 0.0, 0.0
        while True:
            step = policy.next_window(spec, start, outcomes, now_s)
            if isinstance(step, Stop):
                windows = [outcome for outcome in outcomes if outcome.plan.kind == "window"]
                ramp = [outcome for outcome in outcomes if outcome.plan.kind == "ramp"]
                began_s = windows[0].counts.start_ns / NS if windows else now_s
                return len(ramp), began_s, len(windows)
            if step.settle_before:
                now_s, backlog = now_s + backlog / self.capacity_qps, 0.0
            over = max(step.rate_qps - self.capacity_qps, 0.0)
            bad = step.kind == "ramp" and over > 0
            if bad:  # it ends when some requests waited for two seconds and more, plainly so
                step = replace(step, window_s=min(step.window_s, 3.0))
                backlog = over * 3.0
            share = 1 / (1 + 9 * (self.capacity_qps / step.rate_qps) ** 25)
            outcomes.append(done(step, over=300 * share, bad=bad, start_s=now_s, e2e_s=self.e2e_s))
            now_s += step.transition_s + step.window_s + 1.0


QUICK = load(["search=quick"]).search


@pytest.mark.parametrize("off", [1 / 30, 1 / 3, 1.0, 3.0, 30.0])
def test_a_ramp_takes_a_third_of_the_budget_however_wrong_the_guess(off):
    for capacity_qps, spec in ((1.5, QUICK), (50.0, SPEC)):
        start = Start(roofline_qps=capacity_qps * off, ttft_s=2.0)
        steps, ramp_s, windows = Service(capacity_qps).searched(spec, start)
        # One bad step may end, and its queue clear, beyond the time for which it was planned.
        assert ramp_s <= spec.budget_s / 3 + 5.0 and steps <= 16
        assert windows >= (4 if 1 / 3 <= off <= 3 else 2)


def test_a_ramp_out_of_time_goes_on_from_what_it_knows():
    spec = replace(SPEC, budget_s=30.0)
    for event, most in ((GOOD, 8.0 * 4), (BAD, 2.0)):
        _, first = played(GUESS, *[event] * 2, spec=spec)
        assert first.kind == "window" and "its part of the budget" in first.reason and first.rate_qps < most
    assert played(GUESS, VOID, VOID, spec=spec)[1].kind == "ramp"


def test_a_prediction_replaces_the_ramp_only_where_asked_and_known():
    quick = replace(SPEC, start="prediction")
    known = Start(roofline_qps=8.0, prediction_qps=6.0)
    _, first = played(known, spec=quick)
    assert first.kind == "window" and first.rate_qps == pytest.approx(6 * math.exp(-0.05))
    assert (first.transition_s, first.settle_before) == (30.0, False)
    _, lower = played(replace(known, first_below=0.15), spec=quick)
    assert lower.rate_qps == pytest.approx(6 * math.exp(-0.15))
    assert policy.prior(quick, known, []).centre == math.log(6)
    assert played(known)[1].kind == played(GUESS, spec=quick)[1].kind == "ramp"


def test_windows_spread_around_the_posterior_median_and_follow_without_a_gap():
    steps, following = played(GUESS, *RAMPED, *[{"over": 36}] * 6)
    windows = [done(step, over=36).counts for step in steps[4:]]
    belief = policy.prior(SPEC, GUESS, [done(s, **e) for s, e in zip(steps[:4], RAMPED, strict=True)])
    for n, step in enumerate([*steps[5:], following], start=1):
        known = posterior(windows[:n], belief)
        wanted = known.qps_per_node * math.exp((0.0, -0.03, 0.02, -0.015)[(n - 1) % 4])
        before = windows[n - 1].rate_qps
        held = min(max(wanted, before * math.exp(-0.2)), before * math.exp(0.1))
        assert step.rate_qps == pytest.approx(held)
        near = abs(math.log(step.rate_qps / windows[n - 1].rate_qps)) <= 0.06
        assert (step.transition_s, step.settle_before) == (0.0 if near else 15.0, False)


LOW = replace(SPEC, start="prediction")


def under_p99(*rates_and_over, limit="ttft_p99"):
    """After windows at such rates with so many over a p99: the last rate, the posterior, what follows."""
    outcomes = []
    for rate_qps, over in rates_and_over:
        step = replace(policy.next_window(LOW, FORESEEN, outcomes, 0.0), rate_qps=rate_qps)
        one = done(step, over)
        rare = {limit: one.counts.over("tpot")}
        outcomes.append(replace(one, counts=replace(one.counts, limits=rare)))
    known = posterior([one.counts for one in outcomes], policy.prior(LOW, FORESEEN, outcomes))
    return rates_and_over[-1][0], known, policy.next_window(LOW, FORESEEN, outcomes, 0.0)


@pytest.mark.parametrize(
    ("limit", "times", "aimed"), [("ttft_p99", 1, 0.04), ("itl_p99", 1, 0.08), ("itl_pooled_p95", 6, 0.1)]
)
def test_under_a_rare_bound_windows_lie_where_a_few_percent_are_over(limit, times, aimed):
    seen = [(7.8, 2 * times), (8.0, 4 * times), (8.2, 7 * times), (8.4, 12 * times)] * 3
    _, known, following = under_p99(*seen, limit=limit)
    above = math.log(following.rate_qps / known.qps_per_node) - (0.0, -0.03, 0.02, -0.015)[11 % 4]
    odds = (1 / allowed_over(limit) - 1) * math.exp(-known.limits[limit].slope * above)
    if above == pytest.approx(MOST_ABOVE):
        assert 1 / (1 + odds) < aimed
    else:
        assert above < MOST_ABOVE and 1 / (1 + odds) == pytest.approx(aimed, abs=0.001)


def test_clean_windows_under_a_p99_are_no_reason_to_climb_over_what_is_known():
    seen = [(7.8, 2), (8.2, 7), (8.4, 12)] * 4
    _, before, _ = under_p99(*seen)
    last, known, following = under_p99(*seen, *[(8.0, 0)] * 4)
    assert not known.open_above and last * math.exp(0.4) > known.high
    assert following.rate_qps <= known.high < 1.1 * before.high


def after_windows(*events, rate_qps=4.0, start=None):
    """What follows windows that were all at one rate, far below the prediction."""
    start = start or FORESEEN
    first = replace(policy.next_window(LOW, start, [], 0.0), rate_qps=rate_qps)
    outcomes = [done(replace(first, index=i), **event) for i, event in enumerate(events)]
    return policy.next_window(LOW, start, outcomes, 0.0)


FORESEEN, FAR = Start(prediction_qps=8.0), Start(prediction_qps=0.8)


def test_a_step_up_is_small_unless_the_bound_was_kept():
    raised = after_windows({"over": 0})
    assert raised.rate_qps == pytest.approx(4 * math.exp(0.4))
    assert "small step up" in raised.reason and raised.transition_s == 15.0
    first = policy.next_window(LOW, FORESEEN, [], 0.0)
    at = (8.0, {"over": 15}), (8.0, {"over": 15}), (4.0, {"over": 40})
    outcomes = [done(replace(first, index=i, rate_qps=qps), **event) for i, (qps, event) in enumerate(at)]
    missed = policy.next_window(LOW, FORESEEN, outcomes, 0.0)
    assert missed.rate_qps == pytest.approx(4 * math.exp(0.1)) and "small step up" in missed.reason


def test_a_step_down_is_never_a_plunge():
    lowered = after_windows({"over": 280}, rate_qps=12.0)
    assert lowered.rate_qps == pytest.approx(12 * math.exp(-0.2))
    assert "small step down" in lowered.reason


def test_overloads_alone_are_left_ever_faster_and_the_budget_follows_the_rate():
    overload = {"over": 200}
    lowered = [after_windows(*[overload] * n, rate_qps=12.0) for n in (2, 3, 4)]
    for plan, step in zip(lowered, (0.2, 0.4, 0.8), strict=True):
        assert plan.rate_qps <= 12 * math.exp(-step) * 1.0001 and "missed a bound" in plan.reason
    slow = replace(QUICK, start="prediction")
    first = policy.next_window(slow, FAR, [], 0.0)
    for rate_qps, over, counted in ((0.4, 200, 0.4), (0.1, 300, 0.8 / 3), (0.1, 30, 0.1)):
        seen = [done(replace(first, rate_qps=rate_qps), over=over)]
        assert fitted(slow, FAR, seen).budget_s == pytest.approx(QUICK.budget_s * min(1 / counted, 8))
    climbed = [done(replace(first, rate_qps=rate_qps, window_s=20 / rate_qps)) for rate_qps in (0.1, 0.4)]
    assert fitted(slow, FAR, climbed).budget_s == pytest.approx(QUICK.budget_s * (200 + 50) / 40)


def test_clean_windows_are_climbed_ever_faster_but_never_to_what_was_hot():
    def climbed(*events):
        windows, following = played(GUESS, *RAMPED, *events)
        return math.log(following.rate_qps / windows[-1].rate_qps), following

    steps = [climbed(*[GOOD] * n) for n in (3, 4, 5)]
    assert [step for step, _ in steps] == pytest.approx([0.2, 0.4, 0.4])
    assert all("climbing" in plan.reason for _, plan in steps)
    windows, following = played(GUESS, *RAMPED, {"over": 200}, *[GOOD] * 6)
    assert max(s.rate_qps for s in windows[5:]) <= windows[4].rate_qps * math.exp(-0.05) * 1.0001
    assert following.rate_qps <= windows[4].rate_qps


def test_after_a_hot_window_it_settles_and_waits_twice_as_long():
    for hot in ({"over": 250, "aborted": True}, {"over": 200}):
        _, following = played(GUESS, *RAMPED, GOOD, hot)
        assert (following.settle_before, following.transition_s) == (True, 30.0)


def test_the_transition_lasts_two_answers_but_not_for_ever():
    assert after_windows({"e2e_s": 20.0}).transition_s == 40.0
    patient = replace(FORESEEN, answer_s=60.0)
    assert after_windows({"e2e_s": 900.0}, start=patient).transition_s == 120.0


def test_the_budget_ends_the_windows_but_grants_the_least_number():
    events = (*RAMPED, *[GOOD] * 6)
    outcomes = [done(s, **e) for s, e in zip(played(GUESS, *events)[0], events, strict=True)]
    assert policy.next_window(SPEC, GUESS, outcomes, 839.0).kind == "window"
    assert policy.next_window(SPEC, GUESS, outcomes, 841.0).kind == "budget"
    assert policy.next_window(SPEC, GUESS, outcomes[:-1], 5000.0).kind == "window"
    void = [replace(o, void=o.plan.kind == "window") for o in outcomes]
    assert policy.next_window(SPEC, GUESS, void, 5000.0).kind == "window"
    assert policy.next_window(SPEC, GUESS, [*void, *void[4:]], 5000.0).kind == "budget"


@pytest.mark.parametrize("budget_s", [60.0, 345.0, 900.0])
@pytest.mark.parametrize("window_s", [10.0, 30.0])
@pytest.mark.parametrize(("failed", "longer"), [(300, 1), (0, 3)])
def test_a_search_whose_answers_all_fail_keeps_its_budget(budget_s, window_s, failed, longer):
    """The rate falls until twenty requests last for minutes. Late answers may come in time at a third."""
    spec = replace(QUICK, start="ramp", budget_s=budget_s, window_s=window_s, transition_s=5.0)
    outcomes, spent_s = [], 0.0
    while isinstance(step := policy.next_window(spec, Start(), outcomes, spent_s), policy.WindowPlan):
        outcome = done(step, over=300, bad=True, start_s=spent_s)
        outcomes.append(replace(outcome, counts=replace(outcome.counts, failed=failed)))
        spent_s += step.transition_s + step.window_s
    windows = [outcome.plan for outcome in outcomes if outcome.plan.kind == "window"]
    assert len(windows) >= (1 if failed else spec.min_windows)
    assert min(counts.window_s for counts in windows) >= spec.window_s
    assert spent_s <= longer * budget_s + spec.least_s
    assert spent_s <= 1.02 * longer * budget_s or windows[-1].window_s == spec.window_s


@pytest.mark.parametrize(
    ("counts", "bad"),
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
def test_bad_steps(counts, bad):
    assert bad_step(counts) is bad


@pytest.mark.parametrize(
    ("waiting", "stops"),
    [(58, False), (59, True)],
)
def test_aborts(waiting, stops):
    answer = should_abort(window_of(200, 200, 0, 0), waiting, S2)
    assert (answer is not None) is stops
