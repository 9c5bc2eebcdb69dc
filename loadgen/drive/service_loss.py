"""Decides which windows may have felt the loss of a service, and how those are judged.

Knows request rows and windows; waits for nothing and knows no deployment.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from analysis.capacity.check import Check
from analysis.capacity.validity import Verdict
from analysis.capacity.window_counts import NS, Window, in_window
from analysis.rows import metrics, records
from loadgen.drive.liveness import heard_ns
from loadgen.search.segments import Outcome

MOST_RECOVERIES = 5
"""Recoveries in one run. Each costs a window or two and what the service needs to come back; one that breaks
more often is to be mended first (our choice)."""
NOTICED_S = 30.0
"""Real seconds after which a loss is noticed at the latest: Serve asks a replica for its health every 10 s
and gives it up after three answers that did not come."""
REASON = "replica_lost"


def outlived(
    rows: pa.Table, window: Window, replicas: Collection[str] | None, noticed_ns: int, time_scale: float = 1.0
) -> bool:
    """True if the service was whole until the end of `window`, some loss of it being noticed at `noticed_ns`.

    No request that was due in it failed since the loss may have begun or is still without its end, and every
    replica was heard after the window. Where answers do not name their replica only time can tell.
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


def affected_windows(
    outcomes: Sequence[Outcome],
    requests: Callable[[int], pa.Table],
    replicas: Collection[str] | None,
    noticed_ns: int,
    time_scale: float,
) -> list[int]:
    """The last windows of `outcomes`, by number, that may have felt a loss; no ramp step, judged at its end.

    `requests` are the rows of a window and of its neighbours.
    """
    indices = []
    for outcome in reversed(outcomes):
        rows = requests(outcome.segment.index)
        if outcome.segment.kind == "ramp" or outlived(rows, outcome.dwell, replicas, noticed_ns, time_scale):
            break
        indices.append(outcome.segment.index)
    return indices


def invalidated(verdict: Verdict) -> Verdict:
    """The verdict on a window in which the service was lost: void, whatever else it shows."""
    lost = Check("service_losses", False, 1.0, 0.0, "", REASON)
    return replace(verdict, valid=False, reason=REASON, checks=(lost, *verdict.checks))
