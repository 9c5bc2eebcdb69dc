"""Offers one window without a search: a fixed rate, a profile, a trace, or a closed loop.

The driver loads and judges them.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from analysis.capacity.window_counts import Window
from analysis.rows import metrics
from conf import Experiment
from loadgen.drive.driver import Driver
from loadgen.drive.loss_recovery import POLL_NS
from loadgen.drive.prepared_load import load_prepared, warm_up
from loadgen.drive.service_loss import in_flight
from loadgen.search.window_plan import WindowPlan
from loadgen.traffic import trace
from loadgen.traffic.processes import Profile
from loadgen.traffic.schedule import NS, ArrivalSchedule

TRANSITION_S, DEFAULT_S = 15.0, 60.0
IDLE_NS = 10 * NS
"""A closed loop has ended when nothing is in flight and nothing ends for so long (our choice)."""


def offer_load(driver: Driver, experiment: Experiment) -> None:
    """Offer the load that the experiment asks for, by whichever key it does."""
    if experiment.concurrency:
        offer_closed_loop(driver, experiment.concurrency, experiment.closed_requests)
    elif experiment.profile_qps:
        profile = Profile.from_points(experiment.profile_qps, experiment.cluster.nodes)
        window_s = _window_s(experiment)
        mean_qps = profile.mean_qps(window_s) / driver.plan.nodes
        offer_rate(driver, mean_qps, window_s, transition_s(window_s), profile)
    elif experiment.rate_qps:
        window_s = _window_s(experiment)
        offer_rate(driver, experiment.rate_qps, window_s, transition_s(window_s))
    else:
        replay_trace(driver, experiment.duration_s)


def transition_s(window_s: float) -> float:
    """Seconds of load before a window of that length, at most a quarter of its own."""
    return min(TRANSITION_S, window_s / 4)


def load_seconds(experiment: Experiment) -> float | None:
    """Seconds of load; None where the service decides (a closed loop)."""
    if experiment.concurrency:
        return None
    if experiment.rate_qps or experiment.profile_qps:
        return (window_s := _window_s(experiment)) + transition_s(window_s)
    recorded = trace.workload_trace(experiment.workload)
    assert recorded is not None
    whole_s = float(recorded.due_ns[-1]) / NS
    return min(whole_s, experiment.duration_s or whole_s)


def _window_s(experiment: Experiment) -> float:
    """Length of the window: as asked, else to the profile's last point, or a minute."""
    ends_s = [second for second, _ in experiment.profile_qps]
    return experiment.duration_s or max(ends_s, default=0.0) or DEFAULT_S


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


def replay_trace(driver: Driver, duration_s: float | None) -> None:
    """Send the trace's requests at the trace's own times: all of it, or its first `duration_s`."""
    warm_up(driver)
    start_ns = driver.feed.next_start_ns()
    duration_ns = None if duration_s is None else int(duration_s * NS)
    seed, first_seq = driver.plan.seed, driver.feed.next_seq
    schedule = driver.feed.traffic.replay(
        start_ns, duration_ns, window_index=0, first_seq=first_seq, seed=seed
    )
    window = _whole(driver, start_ns, int(schedule.due_ns[-1]) + 1, len(schedule))
    plan = _window_plan(window, "the trace's own times")
    driver.announce(plan, window)
    driver.feed.offer(schedule, start_ns)
    driver.watch(window, may_abort=False)
    driver.close(plan, window, window.planned_end_ns)
    driver.drain()


def offer_closed_loop(driver: Driver, concurrency: int, requests: int) -> None:
    """Keep `concurrency` requests in flight until `requests` have been answered: a closed loop.

    The window leaves out the first requests, which ramp up, and what follows the last send.
    """
    warm_up(driver)
    start_ns, seed, first_seq = driver.feed.next_start_ns(), driver.plan.seed, driver.feed.next_seq
    schedule = driver.feed.traffic.closed(
        requests, concurrency, start_ns, window_index=0, first_seq=first_seq, seed=seed
    )
    play_closed_loop(driver, schedule, start_ns, f"closed loop, {concurrency} in flight")


def play_closed_loop(
    driver: Driver, schedule: ArrivalSchedule, start_ns: int, why: str, *, to_the_end: bool = False
) -> None:
    """Play a closed loop as one window, which lasts from where its schedule says to the last send.

    With `to_the_end` it is all of it, from the first send to the last answer.
    """
    number, concurrency = schedule.window_index, schedule.concurrency
    begun = replace(_whole(driver, start_ns, start_ns + 1, 0, number), concurrency=concurrency)
    driver.announce(_window_plan(begun, why), begun)
    driver.feed.offer(schedule, start_ns)
    _play(driver, number, len(schedule))
    rows = driver.windows.ledger.rows(number)
    steady = rows if to_the_end else rows.filter(pa.array(metrics.word_in(rows, "phase", "window")))
    due_ns = metrics.numbers(steady, "due_ns")
    last_ns = due_ns + (np.nan_to_num(metrics.numbers(steady, "end_offset_ns")) if to_the_end else 0)
    begin_ns, end_ns = (
        (int(due_ns.min()), int(last_ns.max()) + 1) if len(due_ns) else (start_ns, start_ns + 1)
    )
    window = replace(_whole(driver, begin_ns, end_ns, len(due_ns), number), concurrency=concurrency)
    driver.close(_window_plan(window, why), window, driver.feed.target.now_ns())


def _play(driver: Driver, number: int, requests: int) -> None:
    """Wait until all requests of a closed loop have ended; what nobody starts any more is retracted."""
    ended, changed_ns = -1, driver.feed.target.now_ns()
    while True:
        rows, now_ns = driver.windows.ledger.rows(number), driver.feed.target.now_ns()
        pending = in_flight(rows)
        if len(rows) - pending >= requests:
            return
        if pending or len(rows) > ended:
            ended, changed_ns = len(rows), now_ns
        elif now_ns > changed_ns + IDLE_NS:
            driver.feed.target.retract()
            why = (
                f"nothing is in flight, and {requests - len(rows)} of {requests} requests were never started"
            )
            driver.emit("abort", index=number, text=f"closed loop {number} ended early: {why}")
            return
        driver.feed.wait_until(driver.feed.target.now_ns() + POLL_NS)
        driver.loss.refuse_dead(number)


def _whole(driver: Driver, start_ns: int, end_ns: int, count: int, number: int = 0) -> Window:
    """A window without a transition; its rate is what came of it."""
    rate_qps = count / ((end_ns - start_ns) / NS)
    return Window(number, "window", rate_qps, driver.plan.nodes, start_ns, start_ns, end_ns, end_ns)


def _window_plan(window: Window, why: str) -> WindowPlan:
    return WindowPlan(window.index, "window", window.rate_qps / window.nodes, 0.0, window.seconds, False, why)
