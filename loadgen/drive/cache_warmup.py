"""Warms up prefix caches before a window is measured: load at its rate until the hit rate has settled.

The driver offers and counts them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from analysis.rows import metrics, records
from analysis.stats.quantiles import quantile
from loadgen.drive.driver import Driver
from loadgen.search.window_plan import WindowPlan
from loadgen.traffic.prefix_sharing import gap_s
from loadgen.traffic.schedule import NS

PIECE_S, LEAST_REQUESTS = 20.0, 20
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
        _report(driver, pieces, began_ns)


def _load_pieces(driver: Driver, plan: WindowPlan, before_qps: float, overloaded: bool) -> list[WarmupPiece]:
    wanted_qps, newcomers = plan.rate_qps, _Newcomers(driver, before_qps, plan.rate_qps)
    pieces: list[WarmupPiece] = []
    for number, rate_qps in enumerate(_rates(driver, wanted_qps, overloaded), 1):
        newcomers.reach(rate_qps)
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
        if settled(pieces) and newcomers.unseen() <= AGREE:
            break
    return pieces


class _Newcomers:
    """New users by the rate they came with, and the share of them that has not come a second time."""

    def __init__(self, driver: Driver, before_qps: float, wanted_qps: float) -> None:
        self._driver, self._asked_qps, self._reached_qps = driver, wanted_qps, before_qps
        self._came: list[tuple[float, int]] = []

    def reach(self, rate_qps: float) -> None:
        """Offer a rate from now on; without conversations all sessions are there at any rate."""
        workload, now_ns = self._driver.plan.workload, self._driver.feed.next_start_ns()
        reached = rate_qps if workload.conversations else self._asked_qps
        if reached > self._reached_qps:
            self._came.append(((reached - self._reached_qps) / self._asked_qps, now_ns))
            self._reached_qps = reached

    def unseen(self) -> float:
        """Share of all users who have not come back yet, which falls exponentially with their mean gap."""
        plan = self._driver.plan
        gap = gap_s(plan.workload, self._asked_qps, plan.nodes)
        if gap is None:
            return 0.0
        now_ns = self._driver.feed.free_ns
        return sum(share * math.exp((came_ns - now_ns) / NS / gap) for share, came_ns in self._came)


def ramp_rates(
    wanted_qps: float, offered_qps: float, cold_qps: float | None, gap_s: float | None = None
) -> list[float]:
    """The rates of the ramp from the last offered rate up to the asked one, without it.

    New users of a step send a prompt that no cache holds, and `gap_s` later one that is cached: as many come
    as make their first prompts `COLD_SHARE` of what the service can do cold. If that is not known, or all
    users are there at any rate, the rate grows by `RATE_FACTOR`.
    """
    rate = COLD_LEAST * wanted_qps if cold_qps is None else COLD_SHARE * cold_qps
    step = PIECE_S / pace_s(cold_qps, gap_s) if cold_qps and gap_s else 0.0
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
    return max(PIECE_S, LEAST_REQUESTS / rate_qps)


def settled(pieces: Sequence[WarmupPiece]) -> bool:
    """True if the last two pieces agree in their hits, and the cold prompts' batch is gone: answers no longer
    get faster.
    """
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
    seconds = piece_s(rate_qps * driver.plan.nodes) if rate_qps == wanted_qps else PIECE_S
    start_ns, end_ns = driver.offer_piece(index, piece, rate_qps, seconds)
    rows = driver.windows.requests(index)
    ended_ns = metrics.numbers(rows, "due_ns") + metrics.numbers(rows, "end_offset_ns")
    ok = metrics.status_in(rows, records.OK)
    return rows.filter(pa.array(ok & (ended_ns >= start_ns) & (ended_ns < end_ns)))


def _report(driver: Driver, pieces: Sequence[WarmupPiece], began_ns: int) -> None:
    done, hit = settled(pieces), pieces[-1].hit
    how = "caches are warm" if done else "caches may still change, they are measured as they are"
    text = f"{how} after {(driver.feed.free_ns - began_ns) / NS:.0f} s: {hit:.1%} of the prompt tokens hit"
    driver.emit("fill", text=text, hit=hit, settled=done)
