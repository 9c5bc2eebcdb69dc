"""Figures of how requests come and leave: Little's law, a growing backlog, a closed loop's rounds."""

import math

import numpy as np
import pyarrow as pa

from analysis.capacity.window_counts import NS, Window, in_window
from analysis.rows import metrics, records
from analysis.stats.estimate import NORMAL_95
from analysis.stats.quantiles import Floats

LITTLE_ERROR = 0.05
"""Largest relative error of Little's law (the method, 5.1 L1)."""
UNSTABLE_T = 3.0
"""A larger t of the queue's slope means that the queue grew (the method, 5.2)."""


def falls_behind(requests: pa.Table, from_ns: float, to_ns: float) -> bool:
    """True if between two instants none or clearly fewer requests ended than came."""
    return fewer_ended(*came_and_ended(requests, from_ns, to_ns))


def came_and_ended(requests: pa.Table, from_ns: float, to_ns: float) -> tuple[int, int]:
    """Requests that came and requests that ended between two instants; a failure is an end.

    `requests` are all that may have ended between them, however early they came.
    """
    due_ns = metrics.numbers(requests, "due_ns")
    end_ns = due_ns + np.nan_to_num(metrics.numbers(requests, "end_offset_ns"))
    end_ns[metrics.status_in(requests, records.PENDING)] = np.inf
    came, ended = (int(((at >= from_ns) & (at < to_ns)).sum()) for at in (due_ns, end_ns))
    return came, ended


def fewer_ended(came: int, ended: int, sds: float = NORMAL_95) -> bool:
    """True if none ended, or fewer than came by so many standard deviations: by default one chance in twenty.

    Each number is taken as Poisson and both as independent, which a service that keeps up is at most.
    """
    return ended == 0 or came - ended > sds * math.sqrt(came + ended)


def little(requests: pa.Table, window: Window, in_flight_mean: float | None) -> float | None:
    """|rate x time in system / L - 1| with L counted apart from the rows (the method, 5.1 L1).

    Rate x time in system is the time all requests spent in the window, per second of it; this is
    exact at the edges, where arrivals times their mean sojourn is not.
    """
    if in_flight_mean is None or in_flight_mean <= 0:
        return None
    due, end = _sojourns(requests)
    inside = np.minimum(end, window.window_end_ns) - np.maximum(due, window.window_start_ns)
    mean = float(np.maximum(inside, 0).sum()) / (window.window_end_ns - window.window_start_ns)
    return abs(mean / in_flight_mean - 1)


def backlog(requests: pa.Table, window: Window) -> float | None:
    """`growth_t`, or 0 where nothing grew."""
    t = growth_t(requests, window)
    return None if t is None else max(t, 0.0)


def growth_t(requests: pa.Table, window: Window) -> float | None:
    """t of the slope of the queue over the window, sampled every second; None if it is unknown.

    The steeper rise of the requests in the system and of those that wait for their first token. The standard
    error allows for the autocorrelation of the residuals.
    """
    due, end = _sojourns(requests)
    first = due + metrics.numbers(requests, "first_token_offset_ns")
    at = np.arange(window.window_start_ns, window.window_end_ns, NS, dtype=np.float64)
    slopes = [slope_t(_inside(due, left, at)) for left in (end, np.fmin(first, end))]
    return max((t for t in slopes if t is not None), default=None)


def concurrency(requests: pa.Table, window: Window) -> float | None:
    """|X R / C - 1| of a closed loop (the method, 5.1 L1); it is large with too few requests.

    X are the requests begun per second of the window, R is their mean time in the system.
    """
    due, end = _sojourns(in_window(requests, window))
    if not len(due) or np.isinf(end).any():
        return None
    in_flight = float(np.sum(end - due)) / NS / window.seconds
    return abs(in_flight / window.concurrency - 1)


def rounds(requests: pa.Table, window: Window) -> float:
    """Requests of the closed loop, ramp-up included, for each one in flight."""
    sent = int(np.sum(metrics.numbers(requests, "window_index") == window.index))
    return sent / window.concurrency


def slope_t(samples: Floats) -> float | None:
    """t-statistic of the linear trend of evenly spaced samples; None below 10 samples or without spread.

    n is reduced to n (1 - a) / (1 + a), a >= 0 being the residuals' autocorrelation at lag 1.
    """
    n = len(samples)
    if n < 10:
        return None
    x = np.arange(n) - (n - 1) / 2
    slope = float(x @ samples) / float(x @ x)
    residual = samples - samples.mean() - slope * x
    squares = float(residual @ residual)
    if squares <= 1e-12 * n:
        return None if slope == 0 else math.copysign(math.inf, slope)
    a = max(float(residual[1:] @ residual[:-1]) / squares, 0.0)
    worth = max(n * (1 - a) / (1 + a), 2.5)
    return slope / math.sqrt(squares / (worth - 2) / float(x @ x))


def _sojourns(requests: pa.Table) -> tuple[Floats, Floats]:
    """Due and end times in ns; end is +inf while a request is in flight."""
    due = metrics.numbers(requests, "due_ns")
    end = due + metrics.numbers(requests, "end_offset_ns")
    never = metrics.status_in(requests, records.PENDING)
    return due, np.where(never, np.inf, np.where(np.isnan(end), due, end))


def _inside(came: Floats, left: Floats, at: Floats) -> Floats:
    """Number that had come and not left at each instant."""
    inside = np.searchsorted(np.sort(came), at, "right") - np.searchsorted(np.sort(left), at, "right")
    return inside.astype(np.float64)
