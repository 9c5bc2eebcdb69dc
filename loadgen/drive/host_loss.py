"""Tells which windows felt the outage of a host, and which requests failed for their own host's sake."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from analysis.capacity.rules import WindowEvidence
from analysis.capacity.window_counts import Window
from analysis.rows import metrics, records
from analysis.rows.metrics import Bools
from loadgen.fleet.host_outage import HostOutage


def felt(outages: Iterable[HostOutage], rows: pa.Table, window: Window) -> list[HostOutage]:
    """The outages that lasted while a window, or the answers to its requests (`rows`), did."""
    ended_ns = _ended_ns(rows)
    last_ns = max(window.window_end_ns, float(np.max(ended_ns, initial=-math.inf)))
    return [outage for outage in outages if outage.lasted_at(window.start_ns, last_ns)]


def added(
    evidence: WindowEvidence, outages: Sequence[HostOutage], rows: pa.Table, window: Window
) -> WindowEvidence:
    """The evidence on a window with the hosts that could not be reached while it lasted."""
    if not outages:
        return evidence
    seen = felt(outages, rows, window)
    load = names(outage for outage in seen if outage.loads)
    nodes = names(outage for outage in seen if outage.serves and not outage.loads)
    return replace(
        evidence,
        lost_load_hosts=tuple(dict.fromkeys((*evidence.lost_load_hosts, *load))),
        lost_nodes=tuple(dict.fromkeys((*evidence.lost_nodes, *nodes))),
    )


def own_fault(outages: Sequence[HostOutage], rows: pa.Table) -> Bools:
    """Requests that were under way while the host of their own load actor had no network."""
    due_ns, ended_ns = metrics.numbers(rows, "due_ns"), _ended_ns(rows)
    client = metrics.numbers(rows, "client_id")
    mask = np.zeros(rows.num_rows, dtype=np.bool_)
    for outage in outages:
        until_ns = math.inf if outage.until_ns is None else outage.until_ns
        meanwhile = (due_ns <= until_ns) & (ended_ns >= outage.from_ns)
        mask |= meanwhile & np.isin(client, list(outage.clients))
    return mask


def names(outages: Iterable[HostOutage]) -> tuple[str, ...]:
    """The hosts, each once."""
    return tuple(dict.fromkeys(map(str, outages)))


def described(outages: Sequence[HostOutage]) -> str:
    """The hosts that cannot be reached, and why."""
    return f"{' and '.join(names(outages))} cannot be reached: {outages[-1].reason}"


def _ended_ns(rows: pa.Table) -> np.ndarray:
    """When each request ended on the run's clock; +inf for one in flight, its due time where unknown."""
    due_ns = metrics.numbers(rows, "due_ns")
    ended_ns = due_ns + np.nan_to_num(metrics.numbers(rows, "end_offset_ns"))
    return np.where(metrics.status_in(rows, records.PENDING), math.inf, ended_ns)
