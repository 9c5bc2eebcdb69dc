"""Fills prefix caches before a window is measured: load at its rate until what they serve has settled.

Knows short pieces of load, what they hit and how long they took, and when that is settled; the driver offers
and counts them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from analysis.rows import metrics, records
from analysis.stats.quantiles import quantile
from loadgen.drive.driver import Driver
from loadgen.search.segments import Segment
from loadgen.traffic.prefix_sharing import gap_s
from loadgen.traffic.schedule import NS

PIECE_S, LEAST_REQUESTS = 20.0, 20
"""Of load whose hit rate is looked at; at the asked rate longer where it would hold fewer requests."""
AGREE = 0.01
"""Two pieces in a row whose hit rates are no further apart are taken as settled."""
FASTER = 0.1
"""Where answers take so much less than in the piece before, a backlog still drains (our choice)."""
LONGEST_S = 300.0
"""At the asked rate; a cache that still changes then is measured as it is, and that is told."""
CLIMB = 1.25
"""Who comes for the first time is in no cache: where nobody knows what a cold service can do, the rate grows
by no more than this from piece to piece, lest they make a queue."""
COLD_SHARE, COLD_LEAST = 0.5, 0.125
"""Of its guessed rate without hits a cold service begins with this share, and gets no more cold prompts on
the way up; without a guess it begins with so much of the asked rate. After an overload it begins from the
first of the asked one (our choices)."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of load at the asked rate: the hit rate of what ended in it, and how long half of that took."""

    hit: float
    e2e_ms: float


def warm_caches(driver: Driver, segment: Segment) -> None:
    """Load until caches serve what they will, if users of this segment may be in none of them.

    Those are users who come anew, and all of them after an overload: the requests that ran took the memory of
    what was cached, and with it the hits that the service needs. That costs no budget. It ends early where a
    load actor is lost, or where the service tells no hits.
    """
    overloaded = segment.settle_before and driver.warmed_qps > 0
    asked, before = segment.rate_qps, 0.0 if overloaded else driver.warmed_qps
    new = asked > before * (1 + AGREE) if driver.plan.workload.conversations else not before
    if not new or _nothing_to_gain(driver):
        return
    began_ns = driver.feed.next_start_ns()
    try:
        pieces = _fill(driver, segment, before, overloaded)
    finally:  # the service may be lost meanwhile
        driver.feed.uncharge(began_ns)
    if not driver.feed.missing_actors():
        driver.warmed_qps = max(before, asked)
    if pieces:
        _tell(driver, pieces, began_ns)


def _fill(driver: Driver, segment: Segment, before_qps: float, overloaded: bool) -> list[Piece]:
    """Offer load piece by piece; those at the asked rate."""
    asked, newcomers = segment.rate_qps, _Newcomers(driver, before_qps, segment.rate_qps)
    pieces: list[Piece] = []
    for number, rate_qps in enumerate(_rates(driver, asked, overloaded), 1):
        newcomers.reach(rate_qps)
        answered = _offer(driver, segment.index, number, rate_qps, asked)
        hit = metrics.prefix_hit(answered)
        if driver.feed.missing_actors() or (hit is None and answered.num_rows):
            break
        if hit is None:  # nothing has ended yet: that tells nothing
            continue
        driver.emit(
            "fill", text=f"filling caches at {rate_qps:.3f} QPS per node: {hit:.1%} of the prompts hit"
        )
        e2e_ms = quantile(metrics.e2e(answered), 0.5)
        assert e2e_ms is not None, "prompts hit of requests that were answered"
        pieces += [Piece(hit, e2e_ms)] if rate_qps == asked else []
        if settled(pieces) and newcomers.unseen() <= AGREE:
            break
    return pieces


class _Newcomers:
    """Users who came with each rate, and how many of them will not have been there a second time."""

    def __init__(self, driver: Driver, before_qps: float, asked_qps: float) -> None:
        self._driver, self._asked_qps, self._reached_qps = driver, asked_qps, before_qps
        self._came: list[tuple[float, int]] = []

    def reach(self, rate_qps: float) -> None:
        """From now on load is offered at a rate; of sessions without conversations all are there at any."""
        workload, now_ns = self._driver.plan.workload, self._driver.feed.next_start_ns()
        reached = rate_qps if workload.conversations else self._asked_qps
        if reached > self._reached_qps:
            self._came.append(((reached - self._reached_qps) / self._asked_qps, now_ns))
            self._reached_qps = reached

    def unseen(self) -> float:
        """About which share of all users has not been there since it came: exponentially less in a mean gap.

        So much of the hit rate is still to come, which two pieces of a few requests do not show.
        """
        plan = self._driver.plan
        gap = gap_s(plan.workload, self._asked_qps, plan.nodes)
        if gap is None:
            return 0.0
        now_ns = self._driver.feed.free_ns
        return sum(share * math.exp((came_ns - now_ns) / NS / gap) for share, came_ns in self._came)


def climb(
    asked_qps: float, offered_qps: float, cold_qps: float | None, gap_s: float | None = None
) -> list[float]:
    """The rates on the way up to the one that is asked, without it, from the one that was offered last.

    Whoever comes with a step sends a prompt that is in no cache, and `gap_s` later another one that is: so
    many come that their first prompts are `COLD_SHARE` of what the service can do cold. Where that is not
    known, or all users are there at any rate, the rate grows by `CLIMB`.
    """
    rate = COLD_LEAST * asked_qps if cold_qps is None else COLD_SHARE * cold_qps
    step = PIECE_S / pace_s(cold_qps, gap_s) if cold_qps and gap_s else 0.0
    rate, found = max(rate, offered_qps + step if step else offered_qps * CLIMB), []
    while rate < asked_qps:
        found.append(rate)
        rate = rate + step if step else rate * CLIMB
    return found


def pace_s(cold_qps: float, gap_s: float) -> float:
    """Seconds of the way up for each QPS per node, where the users who come with it are new."""
    return gap_s / (COLD_SHARE * cold_qps)


def piece_s(rate_qps: float) -> float:
    """Seconds of a piece at a rate of the whole service."""
    return max(PIECE_S, LEAST_REQUESTS / rate_qps)


def settled(pieces: Sequence[Piece]) -> bool:
    """True if the last two pieces agree in their hits, and answers no longer get faster.

    Who came cold made a batch of its own, which is still there when the hits are back.
    """
    if len(pieces) < 2:
        return False
    before, last = pieces[-2:]
    return abs(last.hit - before.hit) <= AGREE and last.e2e_ms >= (1 - FASTER) * before.e2e_ms


def _rates(driver: Driver, asked_qps: float, overloaded: bool) -> Iterator[float]:
    """The rate of each piece, for as long as a fill may last; only users who come anew need a climb."""
    offered = driver.windows.outcomes[-1].segment.rate_qps if driver.windows.outcomes else 0.0
    if overloaded:  # what a full cache carries, one that was robbed may not
        offered = COLD_SHARE * asked_qps
    workload, cold_qps = driver.plan.workload, driver.plan.start.roofline_qps
    if workload.has_sessions:
        gap = gap_s(workload, asked_qps, driver.plan.nodes) if workload.conversations else None
        yield from climb(asked_qps, offered, cold_qps, gap)
    pieces = max(2, round(LONGEST_S / piece_s(asked_qps * driver.plan.nodes)))
    yield from [asked_qps] * pieces


def _nothing_to_gain(driver: Driver) -> bool:
    """True if the warm-up showed that hits are not told, or met all that prompts share by the plan."""
    rows = driver.windows.ledger.rows(-1)
    rows = rows.slice(rows.num_rows // 2)
    hit = metrics.prefix_hit(rows)
    if hit is None or driver.plan.workload.has_sessions:
        return hit is None and rows.num_rows > 0
    return hit >= metrics.prefix_shared(rows, driver.plan.block_tokens - 1) - AGREE


def _offer(driver: Driver, index: int, piece: int, rate_qps: float, asked_qps: float) -> pa.Table:
    """Offer one piece of load; what was answered meanwhile, whenever it was due.

    Of what was due in the piece a service with a queue has answered nothing, and a calm one what is short.
    """
    seconds = piece_s(rate_qps * driver.plan.nodes) if rate_qps == asked_qps else PIECE_S
    start_ns, end_ns = driver.offer_piece(index, piece, rate_qps, seconds)
    rows = driver.windows.requests(index)
    ended_ns = metrics.numbers(rows, "due_ns") + metrics.numbers(rows, "end_offset_ns")
    ok = metrics.status_in(rows, records.OK)
    return rows.filter(pa.array(ok & (ended_ns >= start_ns) & (ended_ns < end_ns)))


def _tell(driver: Driver, pieces: Sequence[Piece], began_ns: int) -> None:
    """Say how the fill ended."""
    done, hit = settled(pieces), pieces[-1].hit
    how = "caches are filled" if done else "caches may still change, they are measured as they are"
    text = f"{how} after {(driver.feed.free_ns - began_ns) / NS:.0f} s: {hit:.1%} of the prompt tokens hit"
    driver.emit("fill", text=text, hit=hit, settled=done)
