"""Windows of a search with known counts."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.capacity.share_curves import logit
from analysis.capacity.window_counts import LOOK_AHEAD, LOOK_BACK, NS, LimitCount, WindowCounts
from conf.specs.bounds import allowed_over

BLOCKS, WINDOW_S = 9, 45
"""Blocks of five seconds in a window."""


def spread(total: float) -> tuple[int, ...]:
    """So many requests, as evenly as can be over the blocks of a window."""
    return tuple(int(part) for part in np.diff(np.round(np.linspace(0, total, BLOCKS + 1))))


def limit_count(over: float, determined: int) -> LimitCount:
    """So many requests over a bound, spread evenly."""
    return LimitCount(int(over), determined, spread(over), spread(determined))


def window(
    rate_qps: float, limits: dict[str, LimitCount], requests: int = 0, index: int = 0, **more: Any
) -> WindowCounts:
    """A window of one node whose realised load was its rate all the time, unless `more` says otherwise."""
    start_ns, end_ns = index * WINDOW_S * NS, (index + 1) * WINDOW_S * NS
    load = (float(rate_qps),) * (LOOK_BACK + BLOCKS + LOOK_AHEAD)
    columns: dict[str, Any] = {"kind": "window", "nodes": 1, "log_work": math.log(rate_qps), "load": load}
    columns |= dict.fromkeys(("start_ns", "window_start_ns"), start_ns)
    columns |= dict.fromkeys(("window_end_ns", "planned_end_ns"), end_ns)
    columns |= {"index": index, "rate_qps": rate_qps, "requests": requests, "limits": limits}
    return WindowCounts(**columns | more)


def on_the_curve(
    capacity: float,
    slope: float,
    rates: Sequence[float],
    limit: str = "tpot",
    others: Sequence[str] = ("ttft", "tpot"),
    requests: int = 3000,
) -> list[WindowCounts]:
    """Windows whose counts over one limit are what the logistic curve says; over `others` nothing is."""
    odds = logit(allowed_over(limit)) + slope * np.log(np.asarray(rates) / capacity)
    none = {other: limit_count(0, requests) for other in others if other != limit}
    shares = 1 / (1 + np.exp(-odds))
    counts = [{limit: limit_count(round(share * requests), requests)} | none for share in shares]
    return [window(rates[i], each, requests, i, arrivals_var=0.0) for i, each in enumerate(counts)]


def window_of(requests: int, ttft: int, tpot: int, paced: int) -> WindowCounts:
    """A window at 8 QPS with so many over each bound, `paced` of the requests with a pace."""
    counts = {"ttft": LimitCount(ttft, requests, (), ()), "tpot": LimitCount(tpot, paced, (), ())}
    return window(8.0, counts, requests, load=())
