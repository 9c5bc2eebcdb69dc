"""Loads an empty service until it is in steady state, before the first window after a break is measured.

Knows pieces of load and how long answers last as they come; the driver offers and counts them. The batch of a
service that fills is smaller than it will be, and whatever is measured then is too good.
"""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa

from analysis.capacity.window_counts import e2e_so_far
from analysis.rows import metrics
from analysis.stats.quantiles import quantile
from loadgen.drive.driver import Driver
from loadgen.search.segments import Segment
from loadgen.traffic.schedule import NS

STEADY_E2E = 3.0
"""Lives of an answer until an empty service is full. Two are too few where a batch that grows makes each
answer slower: at 1.15 times the capacity of such a service p90 TPOT is 10 % too low then (simulated)."""
PIECE_S = 10.0
"""Seconds of load after which the life of an answer is estimated again (our choice)."""
SLOWER = 10.0
"""An answer that takes so many times as long as at first is one of an overload, where no bound says so (our
choice: at the bounds of the default service it takes eight times as long)."""
FIRST_PIECE = 2000
"""Number of the first piece, beyond those of a cache warm-up and of the load that runs out."""
LEAST_SEEN = 4
"""Fewest answers that say how long they last (our choice)."""


def after_break(driver: Driver, segment: Segment, rate_qps: float) -> Segment:
    """The first segment after a break (a new session, or the service came back), the service loaded for it.

    Nothing was offered just before, however near the last window's rate: the transition is no shorter than
    the search's. Except for a ramp step the service first reaches steady state at `rate_qps` per node.
    """
    if driver.windows.outcomes:
        least_s = driver.plan.search.transition_s
        segment = replace(segment, transition_s=max(segment.transition_s, least_s))
    if segment.kind != "ramp":
        since_ns = max(driver.feed.began_ns, driver.loss.whole_ns)
        _reach_steady_state(driver, segment.index, rate_qps, segment.transition_s, since_ns)
    return segment


def _reach_steady_state(driver: Driver, index: int, rate_qps: float, known_s: float, since_ns: int) -> None:
    """Offer a rate per node until, with the `known_s` that follow, it was there for `STEADY_E2E` answers.

    Load for the same segment since `since_ns`, such as a cache warm-up, counts too. Within the bounds no
    answer lasts longer than the plan says, or `SLOWER` times as at first: after so many of those a window
    shows an overload. It costs no budget.
    """
    feed = driver.feed
    longest_s, piece, free_ns = driver.plan.begin.answer_s, 0, feed.next_start_ns()
    begin_ns = _first_due_ns(driver, index, since_ns)
    while not feed.missing_actors():
        offered_s = known_s + (feed.next_start_ns() - begin_ns) / NS
        lasts_s = _lasts_s(driver, index, begin_ns)
        if lasts_s is not None:
            longest_s = min(longest_s, SLOWER * lasts_s)
        left_s = STEADY_E2E * min(longest_s, lasts_s or math.inf) - offered_s
        if left_s <= 0:
            break
        driver.offer_piece(index, FIRST_PIECE + piece, rate_qps, min(PIECE_S, left_s))
        piece += 1
    if piece:
        feed.uncharge(free_ns)
        filled_s = (feed.free_ns - begin_ns) / NS
        driver.emit(
            "steady", text=f"{filled_s:.0f} s of load at {rate_qps:.3g} QPS per node fill the service"
        )


def _first_due_ns(driver: Driver, index: int, since_ns: int) -> int:
    """Start of the load for a segment since an instant."""
    due_ns = metrics.numbers(driver.windows.ledger.rows(index), "due_ns")
    return int(min(due_ns[due_ns >= since_ns], default=driver.feed.next_start_ns()))


def _lasts_s(driver: Driver, index: int, begin_ns: int) -> float | None:
    """Median life of an answer in the later half of the load since `begin_ns`; None if too few."""
    rows, now_ns = driver.windows.ledger.rows(index), driver.feed.target.now_ns()
    due_ns = metrics.numbers(rows, "due_ns")
    late = (due_ns >= (begin_ns + now_ns) / 2) & (due_ns <= now_ns)
    lasts_ms = e2e_so_far(rows.filter(pa.array(late)), now_ns)
    middle_ms = quantile(lasts_ms, 0.5) if np.isfinite(lasts_ms).sum() >= LEAST_SEEN else None
    return None if middle_ms is None else middle_ms / 1e3
