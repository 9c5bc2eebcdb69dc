"""Prepares a service for a window and loads it: settle, cache warm-up, steady state, then the window.

Before the first window, untimed requests of the real shape warm the service up. After a break it is loaded
until it is in steady state: the batch of a service that fills is too small, and what it shows too good.
"""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa

from analysis.capacity import service_checks
from analysis.capacity.rules import QUEUE_UNTOLD
from analysis.capacity.window_counts import e2e_so_far
from analysis.rows import failures, metrics, records
from analysis.stats.quantiles import quantile
from loadgen.drive.cache_warmup import warm_caches
from loadgen.drive.driver import Driver
from loadgen.drive.loss_recovery import TargetLost
from loadgen.search.window_plan import WindowPlan
from loadgen.traffic.processes import Profile
from loadgen.traffic.schedule import NS


def load_prepared(
    driver: Driver, plan: WindowPlan, may_abort: bool = True, profile: Profile | None = None
) -> None:
    """Load one window on a service in steady state: no backlog, warm caches, a full batch."""
    driver.settle(plan)
    if plan.kind != "ramp" and driver.plan.workload.wants_hits:
        warm_caches(driver, plan)
    if driver.loss.is_first_window():
        first_qps = profile.first_qps / driver.plan.nodes if profile else plan.rate_qps
        plan = after_break(driver, plan, first_qps)
    driver.load(plan, may_abort, profile)


WARMUP_QPS = 4.0
"""Highest rate of the warm-up; a service with a lower guess gets half of the guess."""
WARMUP_LIMIT_S = 600.0
UNREPORTED = (
    "no answer reports its cached tokens: caches are not warmed up first, and whether prompts hit as "
    "intended is unknown; start vLLM with --enable-prompt-tokens-details"
)


def warm_up(driver: Driver) -> None:
    """Send the plan's warm-up requests until all are answered; then the budget begins."""
    feed, plan = driver.feed, driver.plan
    feed.free_ns = feed.began_ns = feed.next_start_ns()
    if not plan.warmup_requests:
        return
    guess = plan.start.prediction_qps or plan.start.roofline_qps or WARMUP_QPS
    gap_ns = int(NS / min(WARMUP_QPS, guess * plan.nodes / 2))
    schedule = feed.traffic.evenly(
        plan.warmup_requests,
        feed.free_ns,
        gap_ns,
        first_seq=feed.next_seq,
        seed=plan.seed,
        streams=plan.streams,
    )
    feed.offer(schedule, int(schedule.due_ns[-1]) + NS)
    driver.await_answers(-1, WARMUP_LIMIT_S, until_done=True)
    rows = driver.windows.ledger.rows(-1)  # those of an earlier session of the run among them
    _report(driver, rows.filter(pa.array(metrics.numbers(rows, "seq") >= schedule.seq[0])), len(schedule))
    feed.began_ns = feed.free_ns


class QueueTimeNotReported(RuntimeError):
    """A bound limits the time in the server's queue, which the server does not report."""


def _refuse_unreported_queue(driver: Driver, rows: pa.Table) -> None:
    """Raise QueueTimeNotReported before the budget is spent: unknown times keep no bound and miss none."""
    share = service_checks.queue_told(rows)
    is_bound = driver.plan.slo.strictest_ms("queue") is not None
    if is_bound and share is not None and share < service_checks.LEAST_QUEUE_TOLD:
        reported = f"{share:.0%} of the warm-up's answers tell their time in the server's queue"
        raise QueueTimeNotReported(f"{QUEUE_UNTOLD.name}: {reported}. {QUEUE_UNTOLD.remedy}")


def refuse_failing(rows: pa.Table) -> None:
    """Raise TargetLost where nearly all requests of a warm-up failed: load is not the cause there."""
    if failures.nearly_all(rows):
        raise TargetLost(f"warm-up: {failures.account(rows)}")


def _report(driver: Driver, rows: pa.Table, requests: int) -> None:
    """Report the end of the warm-up. Raises TargetLost or QueueTimeNotReported if nothing can be measured."""
    states = Counter(rows["status"].to_pylist())
    counted = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    failed = failures.line(failures.kinds(rows), rows.num_rows)
    driver.emit("warm", text="; ".join(filter(None, (f"warm-up: {requests} requests, {counted}", failed))))
    answered = metrics.status_in(rows, records.OK).any()
    if driver.plan.workload.wants_hits and answered and metrics.prefix_hit(rows) is None:
        driver.emit("fill", text=UNREPORTED)
    _refuse_unreported_queue(driver, rows)
    if other := rows.filter(pa.array(metrics.word_in(rows, "error_kind", "time_scale"))).to_pylist():
        driver.loss.lose(other[0]["error"])
    refuse_failing(rows)
    driver.loss.refuse_dead(-1, least=1)


STEADY_E2E = 3.0
"""Length of the load before a window, in median durations of an answer: an empty service is full then. Two
are too few if a growing batch slows each answer: at 1.15 times the capacity p90 TPOT is 10 % too low
(simulated)."""
PIECE_S, LEAST_PIECE_S = 10.0, 1.0
"""Most and fewest seconds of load after which the life of an answer is estimated again (our choice)."""
SLOWER = 10.0
"""An answer that takes this many times as long as the first ones shows an overload if no bound does (our
choice: at the bounds of the default service it takes eight times as long)."""
FIRST_PIECE = 2000
"""Number of the first piece, beyond those of a cache warm-up and of the load that runs out."""
LEAST_SEEN = 4
"""Fewest answers for an estimate of their duration (our choice)."""


def after_break(driver: Driver, plan: WindowPlan, rate_qps: float) -> WindowPlan:
    """The first window after a break (a new session, or the service came back), the service loaded for it.

    Its transition is no shorter than the search's: nothing was offered just before. Except for a ramp step
    the service first reaches steady state at `rate_qps` per node.
    """
    if driver.windows.outcomes:
        least_s = driver.plan.search.transition_s
        plan = replace(plan, transition_s=max(plan.transition_s, least_s))
    if plan.kind != "ramp":
        since_ns = max(driver.feed.began_ns, driver.loss.whole_ns)
        _reach_steady_state(driver, plan.index, rate_qps, plan.transition_s, since_ns)
    return plan


def _reach_steady_state(driver: Driver, index: int, rate_qps: float, known_s: float, since_ns: int) -> None:
    """Offer a rate per node until, with the `known_s` that follow, it was there for `STEADY_E2E` answers.

    Load since `since_ns`, such as a cache warm-up, counts too. Answers that last longer than the bounds
    allow, or `SLOWER` times as at first, show an overload. It costs no budget.
    """
    feed = driver.feed
    longest_s, piece, free_ns = driver.plan.begin.answer_s, 0, feed.next_start_ns()
    due_ns = metrics.numbers(driver.windows.ledger.rows(index), "due_ns")
    begin_ns = int(min(due_ns[due_ns >= since_ns], default=free_ns))
    while not feed.missing_actors():
        offered_s = known_s + (feed.next_start_ns() - begin_ns) / NS
        lasts_s = _lasts_s(driver, index, begin_ns)
        if lasts_s is not None:
            longest_s = min(longest_s, SLOWER * lasts_s)
        left_s = STEADY_E2E * min(longest_s, lasts_s or math.inf) - offered_s
        if left_s <= 0:
            break
        driver.offer_piece(index, FIRST_PIECE + piece, rate_qps, min(_piece_s(driver), left_s))
        piece += 1
    if piece:
        feed.uncharge(free_ns)
        filled_s = (feed.free_ns - begin_ns) / NS
        driver.emit(
            "steady", text=f"{filled_s:.0f} s of load at {rate_qps:.3g} QPS per node fill the service"
        )


def _piece_s(driver: Driver) -> float:
    """Seconds of load until the life of an answer is estimated again; fewer where the warm-up was fast."""
    lasts_ms = metrics.e2e(driver.windows.ledger.rows(-1))
    known_ms = lasts_ms[np.isfinite(lasts_ms)]
    if not len(known_ms):
        return PIECE_S
    return min(PIECE_S, max(LEAST_PIECE_S, STEADY_E2E * float(np.median(known_ms)) / 1e3))


def _lasts_s(driver: Driver, index: int, begin_ns: int) -> float | None:
    """Median duration of an answer in the later half of the load since `begin_ns`; None for too few."""
    rows, now_ns = driver.windows.ledger.rows(index), driver.feed.target.now_ns()
    due_ns = metrics.numbers(rows, "due_ns")
    late = (due_ns >= (begin_ns + now_ns) / 2) & (due_ns <= now_ns)
    lasts_ms = e2e_so_far(rows.filter(pa.array(late)), now_ns)
    middle_ms = quantile(lasts_ms, 0.5) if np.isfinite(lasts_ms).sum() >= LEAST_SEEN else None
    return None if middle_ms is None else middle_ms / 1e3
