"""Programs of a run: a search, one required rate, or one window (rate, profile, trace, closed loop)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from analysis.capacity.growing_queue import falls_behind
from analysis.capacity.window_counts import NS, Window, WindowCounts, count, in_window, over_bound
from analysis.rows import metrics
from analysis.stats.quantiles import quantile
from conf import ConfigError, Experiment
from conf.specs.bounds import PER_REQUEST, allowed_over, metric_of
from loadgen.drive.driver import Driver
from loadgen.drive.load_feed import BRIDGE_NS, POLL_NS
from loadgen.drive.loss_recovery import TargetLost
from loadgen.drive.prepared_load import load_prepared, warm_up
from loadgen.drive.service_loss import in_flight
from loadgen.search.acceptance import PASS_WINDOWS, InterimAnalysis, decide, windows_s
from loadgen.search.pacing import TRANSITION_E2E, WINDOW_E2E, WINDOW_LEAST, lasting_s
from loadgen.search.policy import next_window
from loadgen.search.window_plan import MeasuredWindow, Stop, WindowPlan, counted_windows
from loadgen.traffic import trace
from loadgen.traffic.schedule import ArrivalSchedule
from loadgen.traffic.traffic import Profile


def focus(driver: Driver) -> WindowPlan | Stop:
    """The next step of "ramp, then focus"."""
    return next_window(driver.plan.search, driver.plan.begin, driver.windows.outcomes, driver.elapsed_s())


def sweep(driver: Driver, choose: Callable[[Driver], WindowPlan | Stop] = focus) -> Stop:
    """Load what `choose` says until the budget or the search ends it; returns why. Raises TargetLost."""
    driver.is_search = True
    warm_up(driver)
    while True:
        try:
            step = choose(driver)
            if not isinstance(step, Stop):
                step = driver.loss.await_load_hosts() or step
            if isinstance(step, Stop):
                driver.drain(run_out=True)
                break
            load_prepared(driver, step)
        except TargetLost as lost:
            driver.recover(lost)
    text, elapsed_s = f"end of search: {step.reason}", driver.elapsed_s()
    driver.emit("stop", stop=step.kind, text=text, elapsed_s=elapsed_s)
    return step


REQUIRED_S = 900.0
TRANSITION_S, WINDOW_S = 60.0, 45.0
"""A queue that is long at times takes minutes to fill: a pass must not count its first."""
BEHIND_WINDOWS = 3
"""Last windows that say whether answers keep up with the requests (our choice)."""
VOID_IN_A_ROW = 2


@dataclass(frozen=True, slots=True)
class Required:
    """The number of interim analyses, and why nothing more could be measured if so.

    `whole_s` are the seconds of all windows that fit into the longest time.
    """

    analyses: int
    whole_s: float
    stop: Stop | None = None


def refuse_requirement(experiment: Experiment) -> None:
    """Raise ConfigError for an experiment that cannot require a rate."""
    if not experiment.rate_qps:
        raise ConfigError("--require needs rate_qps=... (QPS per node): it passes or fails one rate")
    bridges_s = (PASS_WINDOWS - 1) * BRIDGE_NS / NS * experiment.time_scale
    least_s = TRANSITION_S + PASS_WINDOWS * _window_s(experiment.rate_qps) + bridges_s
    if required_s(experiment) < least_s:
        windows = f"the {PASS_WINDOWS} windows that a pass takes"
        raise ConfigError(
            f"duration_s={required_s(experiment):g} is short of {windows}; raise it to {math.ceil(least_s)}"
        )


def required_s(experiment: Experiment) -> float:
    """The longest that a required rate is offered, in seconds."""
    return experiment.duration_s or REQUIRED_S


def require(driver: Driver, rate_qps: float, longest_s: float) -> Required:
    """Offer a rate per node until an interim analysis decides, also on whole answers, or time is over."""
    warm_up(driver)
    transition_s, analyses = TRANSITION_S, 0
    whole_s = windows_s(longest_s, transition_s, _window_s(rate_qps), driver.feed.bridge_ns / NS)
    why = "the required rate"
    while True:
        stop, last = driver.loss.await_load_hosts(), driver.windows.outcomes[-VOID_IN_A_ROW:]
        if not stop and len(last) == VOID_IN_A_ROW and all(outcome.void for outcome in last):
            stop = Stop("void", f"{VOID_IN_A_ROW} windows in a row were void")
        if stop:
            driver.drain()
            return Required(analyses, whole_s, stop)
        index = len(driver.windows.outcomes)
        window_s = max(_window_s(rate_qps), WINDOW_E2E * _lasting_s(driver))
        plan = WindowPlan(index, "window", rate_qps, transition_s, window_s, False, why)
        load_prepared(driver, plan, may_abort=False)
        analysis, analyses, transition_s = analyse(driver, rate_qps, whole_s), analyses + 1, 0.0
        late = driver.elapsed_s() + window_s > longest_s
        if analysis.verdict != "undecided" or late:
            driver.drain(run_out=True)
            analysis = analyse(driver, rate_qps, whole_s)
            transition_s = max(TRANSITION_S, TRANSITION_E2E * _lasting_s(driver))
            late = driver.elapsed_s() + transition_s + window_s > longest_s
        why = f"interim analysis {analyses}: {analysis.reason}"
        driver.emit("look", index=analyses, verdict=analysis.verdict, text=why)
        if analysis.verdict != "undecided" or late:
            return Required(analyses, whole_s)


def analyse(driver: Driver, rate_qps: float, whole_s: float) -> InterimAnalysis:
    """Judge a rate by all windows that are not void, as known now."""
    used = [outcome for outcome in driver.windows.outcomes if not outcome.void]
    behind = False
    if last := [outcome.counts for outcome in used[-BEHIND_WINDOWS:]]:
        rows = driver.windows.ledger.rows(*range(last[-1].index + 1))
        behind = falls_behind(rows, last[0].window_start_ns, last[-1].window_end_ns)
    return decide(
        rate_qps, counted_windows(used), _at_quantile(driver, used) if used else [], whole_s, behind
    )


def _at_quantile(driver: Driver, outcomes: Sequence[MeasuredWindow]) -> list[WindowCounts]:
    """The windows counted at bounds, all by one factor wider or tighter, of which one is just kept.

    Gaps of a whole window are counted against their bound as they come, and stay at that bound.
    """
    slo, now_ns = driver.plan.slo, driver.feed.target.now_ns()
    windows = [outcome.counts for outcome in outcomes]
    rows = pa.concat_tables([in_window(driver.windows.requests(w.index), w) for w in windows])
    own = [
        quantile(over_bound(rows, slo, bound, now_ns), 1 - allowed_over(bound.limit))
        for bound in slo.bounds
        if metric_of(bound.limit) in PER_REQUEST
    ]
    factor = max((it for it in own if it is not None and math.isfinite(it)), default=0.0)
    if not factor:
        return []
    bounds = slo.scaled(factor)
    return [count(driver.windows.requests(w.index), w, bounds, driver.plan.workload, now_ns) for w in windows]


def _lasting_s(driver: Driver) -> float:
    return lasting_s(driver.plan.begin, driver.windows.outcomes)


def _window_s(rate_qps: float) -> float:
    return max(WINDOW_S, WINDOW_LEAST / rate_qps)


PROBE_TRANSITION_S, PROBE_S = 15.0, 60.0
IDLE_NS = 10 * NS
"""A closed loop has ended when nothing is in flight and nothing ends for so long (our choice)."""


def offer_load(driver: Driver, experiment: Experiment) -> None:
    """Offer the load that the experiment asks for, by whichever key it does.

    A trace is sent at its own times: all of it, or its first `duration_s`. A closed loop keeps `concurrency`
    requests in flight; its window leaves out the first ones, which ramp up, and what follows the last send.
    """
    if experiment.rate_qps or experiment.profile_qps:
        window_s, profile, qps_per_node = _probe_s(experiment), None, experiment.rate_qps
        if experiment.profile_qps:
            seconds, qps = zip(*experiment.profile_qps, strict=True)
            profile = Profile(seconds, [rate * experiment.cluster.nodes for rate in qps])
            qps_per_node = profile.mean_qps(window_s) / driver.plan.nodes
        assert qps_per_node is not None
        offer_rate(driver, qps_per_node, window_s, transition_s(window_s), profile)
        return
    warm_up(driver)
    start_ns = driver.feed.next_start_ns()
    numbers = {"window_index": 0, "first_seq": driver.feed.next_seq, "seed": driver.plan.seed}
    if held := experiment.concurrency:
        schedule = driver.feed.traffic.closed(experiment.closed_requests, held, start_ns, **numbers)
        play_closed_loop(driver, schedule, start_ns, f"closed loop, {held} in flight")
        return
    duration_ns = None if experiment.duration_s is None else int(experiment.duration_s * NS)
    schedule = driver.feed.traffic.replay(start_ns, duration_ns, **numbers)
    end_ns, why = int(schedule.due_ns[-1]) + 1, "the trace's own times"
    plan, window = _whole(driver, schedule, start_ns, end_ns, len(schedule), why)
    driver.announce(plan, window)
    driver.feed.offer(schedule, start_ns)
    driver.watch(window, may_abort=False)
    driver.close(plan, window, window.planned_end_ns)
    driver.drain()


def transition_s(window_s: float) -> float:
    """Seconds of load before a window of that length, at most a quarter of its own."""
    return min(PROBE_TRANSITION_S, window_s / 4)


def load_seconds(experiment: Experiment) -> float | None:
    """Seconds of load; None where the service decides (a closed loop)."""
    if experiment.concurrency:
        return None
    if experiment.rate_qps or experiment.profile_qps:
        return (window_s := _probe_s(experiment)) + transition_s(window_s)
    recorded = trace.workload_trace(experiment.workload)
    assert recorded is not None
    whole_s = float(recorded.due_ns[-1]) / NS
    return min(whole_s, experiment.duration_s or whole_s)


def _probe_s(experiment: Experiment) -> float:
    """Length of the window: as asked, else to the profile's last point, or a minute."""
    ends_s = [second for second, _ in experiment.profile_qps]
    return experiment.duration_s or max(ends_s, default=0.0) or PROBE_S


def offer_rate(
    driver: Driver,
    qps_per_node: float,
    duration_s: float,
    transition_s: float,
    profile: Profile | None = None,
) -> None:
    """Offer one rate, or a profile (of the whole service) of that mean rate, after a transition."""
    warm_up(driver)
    why = "the profile that was asked" if profile else "the rate that was asked"
    plan = WindowPlan(0, "window", qps_per_node, transition_s, duration_s, False, why)
    load_prepared(driver, plan, may_abort=False, profile=profile)
    driver.drain(run_out=profile is None)


def play_closed_loop(
    driver: Driver, schedule: ArrivalSchedule, start_ns: int, why: str, *, to_the_end: bool = False
) -> None:
    """Play a closed loop as one window, which lasts from where its schedule says to the last send.

    With `to_the_end` it is all of it, from the first send to the last answer.
    """
    number = schedule.window_index
    driver.announce(*_whole(driver, schedule, start_ns, start_ns + 1, 0, why))
    driver.feed.offer(schedule, start_ns)
    _play(driver, number, len(schedule))
    rows = driver.windows.ledger.rows(number)
    steady = rows if to_the_end else rows.filter(pa.array(metrics.word_in(rows, "phase", "window")))
    due_ns = metrics.numbers(steady, "due_ns")
    last_ns = due_ns + (np.nan_to_num(metrics.numbers(steady, "end_offset_ns")) if to_the_end else 0)
    begin_ns, end_ns = (
        (int(due_ns.min()), int(last_ns.max()) + 1) if len(due_ns) else (start_ns, start_ns + 1)
    )
    now_ns = driver.feed.target.now_ns()
    driver.close(*_whole(driver, schedule, begin_ns, end_ns, len(due_ns), why), now_ns)


def _play(driver: Driver, number: int, requests: int) -> None:
    """Wait until all requests of a closed loop have ended; what nobody starts any more is retracted."""
    started, changed_ns = -1, driver.feed.target.now_ns()
    while True:
        rows, now_ns = driver.windows.ledger.rows(number), driver.feed.target.now_ns()
        pending = in_flight(rows)
        if len(rows) - pending >= requests:
            return
        if pending or len(rows) > started:
            started, changed_ns = len(rows), now_ns
        elif now_ns > changed_ns + IDLE_NS:
            driver.feed.target.retract()
            why = (
                f"nothing is in flight, and {requests - len(rows)} of {requests} requests were never started"
            )
            driver.emit("abort", index=number, text=f"closed loop {number} ended early: {why}")
            return
        driver.feed.wait_until(driver.feed.target.now_ns() + POLL_NS)
        driver.loss.refuse_dead(number)


def _whole(
    driver: Driver, schedule: ArrivalSchedule, start_ns: int, end_ns: int, count: int, why: str
) -> tuple[WindowPlan, Window]:
    """The window of a schedule, without a transition; its rate is what came of it."""
    number, nodes, rate_qps = schedule.window_index, driver.plan.nodes, count / ((end_ns - start_ns) / NS)
    times_ns = start_ns, start_ns, end_ns, end_ns
    window = Window(number, "window", rate_qps, nodes, *times_ns, concurrency=schedule.concurrency)
    return WindowPlan(number, "window", rate_qps / nodes, 0.0, window.seconds, False, why), window
