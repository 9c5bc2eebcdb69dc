"""Whether there is a service behind the answers at all: a dead one has no capacity, however low.

Knows request rows; knows neither bounds nor rates. An overloaded service is slow or refuses some, a dead
one refuses everything or says nothing.
"""

import math

import numpy as np
import pyarrow as pa

from analysis import metrics, records

DEAD_SHARE, DEAD_LEAST = 0.9, 5
"""Requests of which this share of at least so many failed have no service behind them (our choice)."""


def death(rows: pa.Table, least: int = DEAD_LEAST) -> str | None:
    """Why nobody serves these requests, or None: almost all that ended or gave a token have failed."""
    token = ~np.isnan(metrics.numbers(rows, "first_token_offset_ns"))
    silent = metrics.status_in(rows, "timeout") & ~token
    failed = metrics.status_in(rows, "conn_error", "http_error") | silent
    told = token | ~metrics.status_in(rows, records.PENDING, *metrics.UNSENT)
    if failed.sum() < max(least, DEAD_SHARE * told.sum()):
        return None
    last = rows.filter(pa.array(failed)).slice(int(failed.sum()) - 1).to_pylist()[0]
    what = " ".join(f"{last['error_kind']} {last['error'] or ''}".split())
    return f"{failed.sum()} of {told.sum()} requests failed: {what}"


def waiting(rows: pa.Table, until_done: bool) -> int:
    """Requests in flight without a first token, or without an end."""
    open_ = metrics.status_in(rows, records.PENDING)
    if not until_done:
        open_ &= np.isnan(metrics.numbers(rows, "first_token_offset_ns"))
    return int(open_.sum())


def heard_ns(rows: pa.Table) -> float:
    """When the last token of any of these requests came, on the run's clock; -inf if none did."""
    last = metrics.numbers(rows, "due_ns") + metrics.numbers(rows, "last_token_offset_ns")
    return float(max(last[~np.isnan(last)], default=-math.inf))
