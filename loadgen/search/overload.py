"""Judges a window while it runs and a ramp step at its end: too many requests over a bound, or a queue.

Knows counts and bounds of one window; knows no search. Source of the constants: the method, sections 4.1 and
4.2, where no other is named.
"""

from analysis.capacity.window_counts import NS, Window, WindowCounts
from conf.specs.experiment import Slo

BAD_TTFT_SHARE, BAD_TPOT_SHARE, BAD_LEAST = 0.15, 0.20, 4
"""Shares over a bound that make a ramp step bad, and the fewest requests: at 1 QPS one stall of a second
delays two of twelve."""
ABORT_FROM_S, ABORT_EVERY_S = 10.0, 5.0
ABORT_WAITING_TTFTS, ABORT_WAITING = 3.0, 10
RAMP_LOOK_S = 1.0
PLAIN_TTFTS, PLAIN_WAITING = 2.0, 10
"""TTFT bounds that an overload's queue takes to clear, and its fewest requests (our choice)."""


def bad_step(dwell: WindowCounts) -> bool:
    """True if a ramp step, counted at its end, was overloaded: > 15 % over TTFT or > 20 % over TPOT."""
    judged = (
        (dwell.ttft.over, BAD_TTFT_SHARE, dwell.requests),
        (dwell.tpot.over, BAD_TPOT_SHARE, dwell.tpot.determined),
    )
    return any(over > share * seen and (over >= BAD_LEAST or over == seen) for over, share, seen in judged)


def plainly_bad(dwell: WindowCounts, waiting: int, seconds: float, slo: Slo) -> str | None:
    """Reason why a ramp step is bad whatever follows its first `seconds`, counted in `dwell`; else None.

    Either more requests are over a bound than would make the whole step bad, or the `waiting` ones would take
    several TTFT bounds at the pace at which first tokens came so far.
    """
    whole = dwell.rate_qps * (dwell.planned_end_ns - dwell.window_start_ns) / NS
    limits = ("TTFT", dwell.ttft.over, BAD_TTFT_SHARE), ("TPOT", dwell.tpot.over, BAD_TPOT_SHARE)
    for name, over, share in limits:
        if over >= max(BAD_LEAST, share * whole):
            return f"{over} requests are over the {name} bound"
    clear_s = _clear_s(dwell, waiting, seconds)
    if waiting >= PLAIN_WAITING and clear_s > PLAIN_TTFTS * slo.ttft_p90_ms / 1e3:
        return f"{waiting} requests wait for a first token, worth {clear_s:.0f} s"
    return None


def long_queue(dwell: WindowCounts, waiting: int, slo: Slo) -> bool:
    """True if the next request would wait beyond the TTFT bound behind those `waiting` at a step's end."""
    return waiting >= BAD_LEAST and _clear_s(dwell, waiting) > slo.ttft_p90_ms / 1e3


def _clear_s(dwell: WindowCounts, waiting: int, seconds: float | None = None) -> float:
    """Seconds until `waiting` requests have a first token, at the pace of the others in `seconds`."""
    return waiting * (dwell.seconds if seconds is None else seconds) / max(dwell.requests - waiting, 1)


def should_abort(window: Window, waiting: int, slo: Slo) -> str | None:
    """Reason to end a window now, with so many `waiting` for a first token; None to go on.

    Requests over a bound are no reason: ending bursts early biases the capacity upwards (simulated).
    """
    queue = ABORT_WAITING_TTFTS * slo.ttft_p90_ms / 1e3 * window.rate_qps + ABORT_WAITING
    if waiting > queue:
        return f"{waiting} requests wait for a first token (bound {queue:.0f})"
    return None
