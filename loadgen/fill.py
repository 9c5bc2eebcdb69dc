"""Fills prefix caches before a window is measured: load at its rate until what they serve has settled.

Knows hit rates of short pieces of load and when they agree; the driver offers and counts them.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from analysis import metrics, records
from loadgen.arrivals import NS
from loadgen.search import Segment
from loadgen.sharing import gap_s

if TYPE_CHECKING:
    from loadgen.driver import Driver

PIECE_S, LEAST_REQUESTS = 20.0, 20
"""Of load whose hit rate is looked at; at the asked rate longer where it would hold fewer requests."""
AGREE = 0.01
"""Two pieces in a row whose hit rates are no further apart are taken as settled."""
LONGEST_S = 300.0
"""At the asked rate; a cache that still changes then is measured as it is, and that is told."""
CLIMB = 1.25
"""Who comes for the first time is in no cache: the rate grows by no more than this from piece to piece, lest
they make a queue."""
COLD_SHARE, COLD_LEAST = 0.5, 0.125
"""A cold service begins at this share of its guessed rate without hits; or of the asked one."""


def caches(driver: "Driver", segment: Segment) -> None:
    """Load until caches serve what they will, if users of this segment may be in none of them.

    That costs no budget. It ends early where a load actor is lost, or where the service tells no hits.
    """
    asked, before = segment.rate_qps, driver.filled_qps
    new = asked > before * (1 + AGREE) if driver.plan.workload.conversations else not before
    if not new or _nothing_to_gain(driver):
        return
    began_ns = driver.next_start_ns()
    try:
        hits = _fill(driver, segment, before)
    finally:  # the service may be lost meanwhile
        driver.uncharge(began_ns)
    if not driver.has_lost_actor():
        driver.filled_qps = max(before, asked)
    if hits:
        _tell(driver, hits, began_ns)


def _fill(driver: "Driver", segment: Segment, before_qps: float) -> list[float]:
    """Offer load piece by piece; the hit rates of those at the asked rate."""
    asked, newcomers = segment.rate_qps, _Newcomers(driver, before_qps, segment.rate_qps)
    hits: list[float] = []
    for piece, rate_qps in enumerate(_rates(driver, asked), 1):
        newcomers.reach(rate_qps)
        answered = _offer(driver, segment.index, piece, rate_qps, asked)
        hit = metrics.prefix_hit(answered)
        if driver.has_lost_actor() or (hit is None and answered.num_rows):
            break
        if hit is None:  # nothing has ended yet: that tells nothing
            continue
        driver.emit(
            "fill", text=f"filling caches at {rate_qps:.3f} QPS per node: {hit:.1%} of the prompts hit"
        )
        hits += [hit] if rate_qps == asked else []
        if settled(hits) and newcomers.unseen() <= AGREE:
            break
    return hits


class _Newcomers:
    """Users who came with each rate, and how many of them will not have been there a second time."""

    def __init__(self, driver: "Driver", before_qps: float, asked_qps: float) -> None:
        self._driver, self._asked_qps, self._reached_qps = driver, asked_qps, before_qps
        self._came: list[tuple[float, int]] = []

    def reach(self, rate_qps: float) -> None:
        """From now on load is offered at a rate; of sessions without conversations all are there at any."""
        workload, now_ns = self._driver.plan.workload, self._driver.next_start_ns()
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
        now_ns = self._driver.free_ns
        return sum(share * math.exp((came_ns - now_ns) / NS / gap) for share, came_ns in self._came)


def climb(asked_qps: float, offered_qps: float, cold_qps: float | None) -> list[float]:
    """The rates on the way up to the one that is asked, without it, from the one that was offered last."""
    cold = COLD_LEAST * asked_qps if cold_qps is None else COLD_SHARE * cold_qps
    rate, found = max(offered_qps * CLIMB, cold), []
    while rate < asked_qps:
        found.append(rate)
        rate *= CLIMB
    return found


def piece_s(rate_qps: float) -> float:
    """Seconds of a piece at a rate of the whole service."""
    return max(PIECE_S, LEAST_REQUESTS / rate_qps)


def settled(hits: Sequence[float]) -> bool:
    """True if the last two pieces agree."""
    return len(hits) >= 2 and abs(hits[-1] - hits[-2]) <= AGREE


def _rates(driver: "Driver", asked_qps: float) -> Iterator[float]:
    """The rate of each piece, for as long as a fill may last; only users who come anew need a climb."""
    offered = driver.outcomes[-1].segment.rate_qps if driver.outcomes else 0.0
    if driver.plan.workload.has_sessions:
        yield from climb(asked_qps, offered, driver.plan.start.roofline_qps)
    pieces = max(2, round(LONGEST_S / piece_s(asked_qps * driver.plan.nodes)))
    yield from [asked_qps] * pieces


def _nothing_to_gain(driver: "Driver") -> bool:
    """True if the warm-up showed that hits are not told, or met all that prompts share by the plan."""
    rows = driver.ledger.rows(-1)
    rows = rows.slice(rows.num_rows // 2)
    hit = metrics.prefix_hit(rows)
    if hit is None or driver.plan.workload.has_sessions:
        return hit is None and rows.num_rows > 0
    return hit >= metrics.prefix_shared(rows, driver.plan.block_tokens - 1) - AGREE


def _offer(driver: "Driver", index: int, piece: int, rate_qps: float, asked_qps: float) -> pa.Table:
    """Offer one piece of load; what was answered meanwhile, whenever it was due.

    Of what was due in the piece a service with a queue has answered nothing, and a calm one what is short.
    """
    start_ns, rate = driver.next_start_ns(), rate_qps * driver.plan.nodes
    end_ns = start_ns + int((piece_s(rate) if rate_qps == asked_qps else PIECE_S) * NS)
    driver.free_ns = end_ns + driver.bridge_ns
    schedule = driver.traffic.draw(
        rate,
        {"transition": (start_ns, driver.free_ns)},
        dwell=index,
        first_seq=driver.next_seq,
        seed=driver.plan.seed,
        streams=driver.plan.streams,
        piece=piece,
    )
    driver.offer(schedule, end_ns)
    driver.refuse_dead(index)
    rows = driver.requests(index)
    ended_ns = metrics.numbers(rows, "due_ns") + metrics.numbers(rows, "end_offset_ns")
    ok = metrics.status_in(rows, records.OK)
    return rows.filter(pa.array(ok & (ended_ns >= start_ns) & (ended_ns < end_ns)))


def _tell(driver: "Driver", hits: Sequence[float], began_ns: int) -> None:
    """Say how the fill ended."""
    how = "caches are filled" if settled(hits) else "caches may still change, they are measured as they are"
    text = f"{how} after {(driver.free_ns - began_ns) / NS:.0f} s: {hits[-1]:.1%} of the prompt tokens hit"
    driver.emit("fill", text=text, hit=hits[-1], settled=settled(hits))
