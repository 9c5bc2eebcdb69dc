"""Prepares a service for a window and loads it: settle, cache warm-up, steady state, then the window.

Before the first window, untimed requests of the real shape warm the service up. After a break it is loaded
until it is in steady state: the batch of a service that fills is too small, and what it shows too good.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from analysis.capacity import checks
from analysis.capacity.rules import REASONS
from analysis.capacity.window_counts import e2e_so_far
from analysis.rows import failures, metrics, records
from analysis.stats.quantiles import quantile
from loadgen.drive.driver import Driver
from loadgen.drive.loss_recovery import TargetLost
from loadgen.search.window_plan import WindowPlan
from loadgen.traffic.prefix_sharing import gap_s
from loadgen.traffic.schedule import NS
from loadgen.traffic.traffic import Profile


def load_prepared(
    driver: Driver, plan: WindowPlan, may_abort: bool = True, profile: Profile | None = None
) -> None:
    """Load one window on a service in steady state: no backlog, warm caches, a full batch."""
    driver.settle(plan)
    if plan.kind != "ramp" and driver.plan.workload.wants_hits:
        warm_caches(driver, plan)
    # No window was loaded since this session began or the service came back.
    if driver.loss.first_window == len(driver.windows.outcomes):
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
    share = checks.queue_share(rows)
    is_bound = driver.plan.slo.strictest_ms("queue") is not None
    if is_bound and share is not None and share < checks.LEAST_QUEUE_TOLD:
        # Before the budget is spent: unknown times keep no bound and miss none.
        reported = f"{share:.0%} of the warm-up's answers tell their time in the server's queue"
        raise QueueTimeNotReported(f"queue_untold: {reported}. {REASONS['queue_untold'].remedy}")
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
    feed, lasts_ms = driver.feed, metrics.e2e(driver.windows.ledger.rows(-1))
    # The median answer to the warm-up, which nothing slowed.
    answered_ms = lasts_ms[np.isfinite(lasts_ms)]
    warm_s = float(np.median(answered_ms)) / 1e3 if len(answered_ms) else math.inf
    longest_s = min(driver.plan.begin.answer_s, SLOWER * warm_s)
    piece_s = min(PIECE_S, max(LEAST_PIECE_S, STEADY_E2E * warm_s))
    piece, free_ns = 0, feed.next_start_ns()
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
        driver.offer_piece(index, FIRST_PIECE + piece, rate_qps, min(piece_s, left_s))
        piece += 1
    if piece:
        feed.uncharge(free_ns)
        filled_s = (feed.free_ns - begin_ns) / NS
        driver.emit(
            "steady", text=f"{filled_s:.0f} s of load at {rate_qps:.3g} QPS per node fill the service"
        )


def _lasts_s(driver: Driver, index: int, begin_ns: int) -> float | None:
    """Median duration of an answer in the later half of the load since `begin_ns`; None for too few."""
    rows, now_ns = driver.windows.ledger.rows(index), driver.feed.target.now_ns()
    due_ns = metrics.numbers(rows, "due_ns")
    late = (due_ns >= (begin_ns + now_ns) / 2) & (due_ns <= now_ns)
    lasts_ms = e2e_so_far(rows.filter(pa.array(late)), now_ns)
    middle_ms = quantile(lasts_ms, 0.5) if np.isfinite(lasts_ms).sum() >= LEAST_SEEN else None
    return None if middle_ms is None else middle_ms / 1e3


CACHE_PIECE_S, LEAST_REQUESTS = 20.0, 20
"""Length of a piece in seconds, and the fewest requests of a piece at the wanted rate."""
AGREE = 0.01
"""Largest difference of two settled hit rates in a row."""
FASTER = 0.1
"""Relative fall of the answer time from piece to piece that shows a draining backlog (our choice)."""
LONGEST_S = 300.0
"""Longest load at the wanted rate in seconds; a cache that still changes then is reported as such."""
RATE_FACTOR = 1.25
"""Ramp factor from piece to piece while the cold capacity is unknown, because new users miss the cache."""
COLD_SHARE, COLD_LEAST = 0.5, 0.125
"""First rate of the ramp: this share of the guessed rate of a cold service, which also bounds the cold
prompts on the way up; without a guess the second share of the wanted rate. After an overload the ramp begins
from the first share of the wanted rate (our choices)."""


@dataclass(frozen=True, slots=True)
class WarmupPiece:
    """A piece of load at the wanted rate: hit rate and median duration of the answers that ended in it."""

    hit: float
    e2e_ms: float


def warm_caches(driver: Driver, plan: WindowPlan) -> None:
    """Load until the hit rate settles, if new users come with this window, or after an overload.

    Running requests then took the memory of cached prompts. It costs no budget, and ends early if a load
    actor is lost or the service reports no hits.
    """
    overloaded = plan.settle_before and driver.warmed_qps > 0
    rate_qps, before = plan.rate_qps, 0.0 if overloaded else driver.warmed_qps
    new = rate_qps > before * (1 + AGREE) if driver.plan.workload.conversations else not before
    if not new or _nothing_to_gain(driver):
        return
    began_ns = driver.feed.next_start_ns()
    try:
        pieces = _load_pieces(driver, plan, before, overloaded)
    finally:  # the service may be lost meanwhile
        driver.feed.uncharge(began_ns)
    if not driver.feed.missing_actors():
        driver.warmed_qps = max(before, rate_qps)
    if pieces:
        done, hit, seconds = settled(pieces), pieces[-1].hit, (driver.feed.free_ns - began_ns) / NS
        how = "caches are warm" if done else "caches may still change, they are measured as they are"
        text = f"{how} after {seconds:.0f} s: {hit:.1%} of the prompt tokens hit"
        driver.emit("fill", text=text, hit=hit, settled=done)


def _load_pieces(driver: Driver, plan: WindowPlan, before_qps: float, overloaded: bool) -> list[WarmupPiece]:
    wanted_qps, reached_qps = plan.rate_qps, before_qps
    pieces: list[WarmupPiece] = []
    came: list[tuple[float, int]] = []
    for number, rate_qps in enumerate(_rates(driver, wanted_qps, overloaded), 1):
        # Without conversations all sessions are there at any rate.
        present_qps = rate_qps if driver.plan.workload.conversations else wanted_qps
        if present_qps > reached_qps:
            came.append(((present_qps - reached_qps) / wanted_qps, driver.feed.next_start_ns()))
            reached_qps = present_qps
        answered = _offer(driver, plan.index, number, rate_qps, wanted_qps)
        hit = metrics.prefix_hit(answered)
        if driver.feed.missing_actors() or (hit is None and answered.num_rows):
            break
        if hit is None:  # nothing has ended yet
            continue
        driver.emit(
            "fill", text=f"cache warm-up at {rate_qps:.3f} QPS per node: {hit:.1%} of the prompts hit"
        )
        e2e_ms = quantile(metrics.e2e(answered), 0.5)
        assert e2e_ms is not None, "prompts hit of requests that were answered"
        pieces += [WarmupPiece(hit, e2e_ms)] if rate_qps == wanted_qps else []
        if settled(pieces) and _unseen(driver, came, wanted_qps) <= AGREE:
            break
    return pieces


def _unseen(driver: Driver, came: Sequence[tuple[float, int]], wanted_qps: float) -> float:
    """Share of all users, who came in these shares at these times, that has not come a second time.

    It falls exponentially with their mean gap.
    """
    gap = gap_s(driver.plan.workload, wanted_qps, driver.plan.nodes)
    if gap is None:
        return 0.0
    now_ns = driver.feed.free_ns
    return sum(share * math.exp((came_ns - now_ns) / NS / gap) for share, came_ns in came)


def ramp_rates(
    wanted_qps: float, offered_qps: float, cold_qps: float | None, gap_s: float | None = None
) -> list[float]:
    """The rates of the ramp from the last offered rate up to the asked one, without it.

    New users of a step send a prompt that no cache holds, and `gap_s` later one that is cached: as many come
    as make their first prompts `COLD_SHARE` of what the service can do cold. If that is not known, or all
    users are there at any rate, the rate grows by `RATE_FACTOR`.
    """
    rate = COLD_LEAST * wanted_qps if cold_qps is None else COLD_SHARE * cold_qps
    step = CACHE_PIECE_S / pace_s(cold_qps, gap_s) if cold_qps and gap_s else 0.0
    rate, rates = max(rate, offered_qps + step if step else offered_qps * RATE_FACTOR), []
    while rate < wanted_qps:
        rates.append(rate)
        rate = rate + step if step else rate * RATE_FACTOR
    return rates


def pace_s(cold_qps: float, gap_s: float) -> float:
    """Seconds of the ramp for each QPS per node whose users are new."""
    return gap_s / (COLD_SHARE * cold_qps)


def piece_s(rate_qps: float) -> float:
    """Seconds of a piece at a rate of the whole service."""
    return max(CACHE_PIECE_S, LEAST_REQUESTS / rate_qps)


def settled(pieces: Sequence[WarmupPiece]) -> bool:
    """True if the last two pieces agree in their hits, and answers no longer get faster (no cold batch)."""
    if len(pieces) < 2:
        return False
    before, last = pieces[-2:]
    return abs(last.hit - before.hit) <= AGREE and last.e2e_ms >= (1 - FASTER) * before.e2e_ms


def _rates(driver: Driver, wanted_qps: float, overloaded: bool) -> Iterator[float]:
    """The rate of each piece, for as long as the warm-up may last; only new users need a ramp."""
    offered = driver.windows.outcomes[-1].plan.rate_qps if driver.windows.outcomes else 0.0
    if overloaded:  # an emptied cache may not carry what a full one does
        offered = COLD_SHARE * wanted_qps
    workload, cold_qps = driver.plan.workload, driver.plan.start.roofline_qps
    if workload.has_sessions:
        gap = gap_s(workload, wanted_qps, driver.plan.nodes) if workload.conversations else None
        yield from ramp_rates(wanted_qps, offered, cold_qps, gap)
    pieces = max(2, round(LONGEST_S / piece_s(wanted_qps * driver.plan.nodes)))
    yield from [wanted_qps] * pieces


def _nothing_to_gain(driver: Driver) -> bool:
    """True if the service warm-up showed no hits, or already all that prompts share by the plan."""
    rows = driver.windows.ledger.rows(-1)
    rows = rows.slice(rows.num_rows // 2)
    hit = metrics.prefix_hit(rows)
    if hit is None or driver.plan.workload.has_sessions:
        return hit is None and rows.num_rows > 0
    return hit >= metrics.prefix_shared(rows, driver.plan.block_tokens - 1) - AGREE


def _offer(driver: Driver, index: int, piece: int, rate_qps: float, wanted_qps: float) -> pa.Table:
    """Offer one piece of load; returns the requests that were answered meanwhile, whenever they were due."""
    seconds = piece_s(rate_qps * driver.plan.nodes) if rate_qps == wanted_qps else CACHE_PIECE_S
    start_ns, end_ns = driver.offer_piece(index, piece, rate_qps, seconds)
    rows = driver.windows.requests(index)
    ended_ns = metrics.numbers(rows, "due_ns") + metrics.numbers(rows, "end_offset_ns")
    ok = metrics.status_in(rows, records.OK)
    return rows.filter(pa.array(ok & (ended_ns >= start_ns) & (ended_ns < end_ns)))
