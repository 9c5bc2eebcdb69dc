"""Backlog: answers end more slowly than requests come while a service still fills or is overloaded.

Knows request rows and instants; knows no bound and no window.
"""

import math

import numpy as np
import pyarrow as pa

from analysis.rows import metrics, records
from analysis.stats.pooling import NORMAL_95


def falls_behind(requests: pa.Table, from_ns: float, to_ns: float) -> bool:
    """True if between two instants none or clearly fewer requests ended than came: one chance in twenty.

    `requests` are all that may have ended between them, however early they came; a failure is an end. Each
    number is taken as Poisson and both as independent, which a service that keeps up is at most.
    """
    due_ns = metrics.numbers(requests, "due_ns")
    end_ns = due_ns + np.nan_to_num(metrics.numbers(requests, "end_offset_ns"))
    end_ns[metrics.status_in(requests, records.PENDING)] = np.inf
    came, ended = (int(((at >= from_ns) & (at < to_ns)).sum()) for at in (due_ns, end_ns))
    return ended == 0 or came - ended > NORMAL_95 * math.sqrt(came + ended)
