"""Judges a window while it runs and a ramp step at its end: too many requests over a bound, or a queue.

Source of the constants: the method, sections 4.1 and 4.2, where no other is named.
"""

from analysis.capacity.window_counts import NS, Window, WindowCounts
from conf.specs.bounds import LIMITS, Limit, Slo, allowed_over, label, metric_of

BAD_TTFT_SHARE, BAD_TPOT_SHARE, BAD_LEAST = 0.15, 0.20, 4
"""Shares over a bound on p90 TTFT, and on a p90 of another latency, that make a ramp step bad, and the fewest
requests: at 1 QPS one stall of a second delays two of twelve."""
ABORT_FROM_S, ABORT_EVERY_S = 10.0, 5.0
ABORT_WAITING_TTFTS, ABORT_WAITING = 3.0, 10
RAMP_LOOK_S = 1.0
PLAIN_TTFTS, PLAIN_WAITING = 2.0, 10
"""TTFT bounds that an overload's queue takes to clear, and its fewest requests (our choice)."""


def bad_step(counts: WindowCounts) -> bool:
    """True if a ramp step, counted at its end, was overloaded: too many requests over a bound."""
    judged = ((counted, _bad_share(limit), _seen(counts, limit)) for limit, counted in counts.limits.items())
    return any(
        counted.over > share * seen and (counted.over >= BAD_LEAST or counted.over == seen)
        for counted, share, seen in judged
    )


def _bad_share(limit: Limit) -> float:
    """Share over a bound that makes a ramp step bad: in proportion to the share that may be over."""
    share = BAD_TTFT_SHARE if metric_of(limit) == "ttft" else BAD_TPOT_SHARE
    return share * allowed_over(limit) / allowed_over(LIMITS[0])


def _seen(counts: WindowCounts, limit: Limit) -> float:
    """Requests that a bound's share is one of: who waits for a first token is within its bound so far."""
    return counts.requests if metric_of(limit) == "ttft" else counts.over(limit).determined


def plainly_bad(counts: WindowCounts, waiting: int, seconds: float, slo: Slo) -> str | None:
    """Reason why a ramp step is bad whatever follows its first `seconds`, counted in `counts`; else None.

    Either more requests are over a bound than would make the whole step bad, or the `waiting` ones would take
    several TTFT bounds at the pace at which first tokens came so far.
    """
    whole = counts.rate_qps * (counts.planned_end_ns - counts.window_start_ns) / NS
    for limit, counted in counts.limits.items():
        if counted.over >= max(BAD_LEAST, _bad_share(limit) * whole):
            return f"{counted.over:.0f} requests are over the bound on {label(limit)}"
    clear_s = _clear_s(counts, waiting, seconds)
    if waiting >= PLAIN_WAITING and clear_s > PLAIN_TTFTS * slo.first_token_ms / 1e3:
        return f"{waiting} requests wait for a first token, worth {clear_s:.0f} s"
    return None


def long_queue(counts: WindowCounts, waiting: int, slo: Slo) -> bool:
    """True if the next request would wait beyond the TTFT bound behind those `waiting` at a step's end."""
    return waiting >= BAD_LEAST and _clear_s(counts, waiting) > slo.first_token_ms / 1e3


def _clear_s(counts: WindowCounts, waiting: int, seconds: float | None = None) -> float:
    """Seconds until `waiting` requests have a first token, at the pace of the others in `seconds`."""
    return waiting * (counts.seconds if seconds is None else seconds) / max(counts.requests - waiting, 1)


def should_abort(window: Window, waiting: int, slo: Slo) -> str | None:
    """Reason to end a window now, with so many `waiting` for a first token; None to go on.

    Requests over a bound are no reason: ending bursts early biases the capacity upwards (simulated).
    """
    queue = ABORT_WAITING_TTFTS * slo.first_token_ms / 1e3 * window.rate_qps + ABORT_WAITING
    if waiting > queue:
        return f"{waiting} requests wait for a first token (bound {queue:.0f})"
    return None
