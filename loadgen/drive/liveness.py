"""Tells a dead service from an overloaded one by its answers: a dead one has no capacity, however low.

Knows request rows; knows neither bounds nor rates. An overloaded service is slow or refuses some, a dead
one refuses everything or says nothing.
"""

import math

import numpy as np
import pyarrow as pa

from analysis.rows import metrics, records
from analysis.rows.metrics import Bools
from conf.io.one_line import one_line
from loadgen.traffic.schedule import NS

DEAD_SHARE, DEAD_LEAST, RECENT_NS = 0.9, 5, 10 * NS
"""Failed share of the newest requests that shows a dead service, their least number, and their age (our
choice)."""


def death(rows: pa.Table, now_ns: int, least: int = DEAD_LEAST) -> str | None:
    """Reason why the service counts as dead by the newest of these requests, or None.

    Almost all of them have failed, and no token came since the first of them was due. A request in flight
    speaks for the service: a hanging one is noticed elsewhere.
    """
    due = metrics.numbers(rows, "due_ns")
    sent = np.flatnonzero(~metrics.status_in(rows, *metrics.UNSENT) & (due <= now_ns))
    sent = sent[np.argsort(due[sent], kind="stable")]
    newest = sent[-max(least, int((due[sent] >= now_ns - RECENT_NS).sum())) :]
    failed = newest[(metrics.status_in(rows, "conn_error", "http_error") | silent(rows))[newest]]
    if len(failed) < max(least, DEAD_SHARE * len(newest)) or heard_ns(rows) >= due[newest].min():
        return None
    last = rows.take(pa.array(failed[-1:])).to_pylist()[0]
    what = one_line(f"{last['error_kind']} {last['error'] or ''}")
    return f"{len(failed)} of the newest {len(newest)} requests failed: {what}"


def in_flight(rows: pa.Table) -> int:
    """Requests that were sent and have not ended."""
    return int(metrics.status_in(rows, records.PENDING).sum())


def silent(rows: pa.Table) -> Bools:
    """Requests that timed out without a token."""
    return metrics.status_in(rows, "timeout") & np.isnan(metrics.numbers(rows, "first_token_offset_ns"))


def heard_ns(rows: pa.Table) -> float:
    """Time of the last token of any of these requests on the run's clock; -inf without one."""
    last = metrics.numbers(rows, "due_ns") + metrics.numbers(rows, "last_token_offset_ns")
    return float(max(last[~np.isnan(last)], default=-math.inf))
