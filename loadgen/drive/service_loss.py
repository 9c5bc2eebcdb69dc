"""Tells a dead service from an overloaded one, and which windows felt its loss or the outage of a host.

An overloaded service is slow or refuses some requests; a dead one refuses everything or says nothing.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.capacity.rules import Check, Verdict, WindowEvidence
from analysis.capacity.window_counts import NS, Window, in_window
from analysis.rows import metrics, records
from analysis.rows.metrics import Bools
from conf.host_outage import HostOutage
from conf.io.one_line import one_line

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


MOST_RECOVERIES = 5
"""Recoveries in one run. Each costs a window or two and what the service needs to come back; one that breaks
more often is to be mended first (our choice)."""
NOTICED_S = 30.0
"""Real seconds after which a loss is noticed at the latest: Serve asks a replica for its health every 10 s
and gives it up after three answers that did not come."""


def outlived(
    rows: pa.Table, window: Window, replicas: Collection[str] | None, noticed_ns: int, time_scale: float = 1.0
) -> bool:
    """True if the service was whole until the end of `window`, some loss of it being noticed at `noticed_ns`.

    None of its requests failed since or is without its end, and every replica was heard after it; time alone
    tells where answers do not name theirs.
    """
    end_ns, since_ns = window.window_end_ns, noticed_ns - int(NOTICED_S * NS * time_scale)
    inside = in_window(rows, window)
    ended_ns = metrics.numbers(inside, "due_ns") + metrics.numbers(inside, "end_offset_ns")
    failed = metrics.status_in(inside, "conn_error", "http_error", "truncated", "timeout")
    if (failed & (ended_ns > since_ns)).any() or metrics.status_in(inside, records.PENDING).any():
        return False
    if replicas is None:
        return end_ns <= since_ns
    names = rows["replica_id"].cast(pa.string())
    return all(heard_ns(rows.filter(pc.equal(names, replica))) > end_ns for replica in replicas)


def invalidated(verdict: Verdict) -> Verdict:
    """The verdict on a window in which the service was lost: void, whatever else it shows.

    A host that could not be reached is the nearer cause.
    """
    lost = Check("service_losses", False, 1.0, 0.0, "", "replica_lost")
    is_host = verdict.reason in ("load_host_lost", "node_lost")
    reason = verdict.reason if is_host else "replica_lost"
    return replace(verdict, valid=False, reason=reason, checks=(lost, *verdict.checks))


def felt(outages: Iterable[HostOutage], rows: pa.Table, window: Window) -> list[HostOutage]:
    """The outages that lasted while a window, or the answers to its requests (`rows`), did."""
    last_ns = max(window.window_end_ns, float(np.max(_ended_ns(rows), initial=-math.inf)))
    return [outage for outage in outages if outage.lasted_at(window.start_ns, last_ns)]


def added(
    evidence: WindowEvidence, outages: Sequence[HostOutage], rows: pa.Table, window: Window
) -> WindowEvidence:
    """The evidence on a window with the hosts that could not be reached while it lasted."""
    if not outages:
        return evidence
    outages_felt = felt(outages, rows, window)
    load = names(outage for outage in outages_felt if outage.loads)
    nodes = names(outage for outage in outages_felt if outage.serves and not outage.loads)
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
