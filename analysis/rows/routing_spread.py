"""Spread of a window's requests over replicas and sessions, as the routing made it.

An unknown figure, as without sessions or replica ids, is None.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.rows import metrics
from analysis.stats.quantiles import quantile
from conf.specs.bounds import QUANTILE, column


def with_sessions(rows: pa.Table) -> bool:
    """True if requests belong to sessions, so that what a prefix cache serves depends on the routing."""
    return bool((metrics.numbers(rows, "session_id") >= 0).any())


def replicas_per_session(rows: pa.Table) -> float | None:
    """Mean number of replicas that answered a session, over sessions with two answers or more.

    1 where every session kept its replica.
    """
    known = _answered(rows)
    sessions = known.filter(pa.array(metrics.numbers(known, "session_id") >= 0))
    counts = sessions.group_by("session_id").aggregate(
        [("replica_id", "count"), ("replica_id", "count_distinct")]
    )
    again = counts.filter(pc.greater_equal(counts["replica_id_count"], 2))["replica_id_count_distinct"]
    return float(pc.mean(again).as_py()) if len(again) else None


def turns_blocked(rows: pa.Table) -> float | None:
    """Share of the turns of sessions that waited for the turn before, because the service was slow."""
    known = rows.filter(pa.array(metrics.numbers(rows, "session_id") >= 0))
    waited = ~np.isnan(metrics.numbers(known, "turn_blocked_ns"))
    return float(waited.mean()) if len(waited) else None


def longest_block_ms(rows: pa.Table) -> float | None:
    """The longest wait of a turn for the one before."""
    waits_ns = metrics.blocked_ns(rows)
    return float(waits_ns.max()) / metrics.NS_PER_MS if waits_ns.any() else None


def max_over_mean_share(rows: pa.Table, replicas: int | None = None) -> float | None:
    """Requests of the busiest replica over the mean of all: 1 where they were spread evenly.

    All are `replicas`, which include those that got none; by default those that answered.
    """
    counts = _answered(rows)["replica_id"].value_counts().field("counts").to_numpy()
    return float(counts.max() * (replicas or len(counts)) / counts.sum()) if len(counts) else None


def by_replica(rows: pa.Table) -> list[dict[str, str | int | float | None]]:
    """Requests and p90 TTFT in ms of each replica that answered, in order of their ids."""
    ids = _words(rows).to_numpy(zero_copy_only=False)
    ttft = metrics.ttft(rows)
    known = sorted({replica for replica in ids if replica is not None})
    return [
        {
            "replica_id": replica,
            "requests": int(np.sum(ids == replica)),
            column("ttft"): quantile(ttft[ids == replica], QUANTILE),
        }
        for replica in known
    ]


def _words(rows: pa.Table) -> pa.ChunkedArray:
    return rows.column("replica_id").cast(pa.string())


def _answered(rows: pa.Table) -> pa.Table:
    """Session and replica of the requests whose replica is known."""
    known = pa.table({"session_id": rows.column("session_id"), "replica_id": _words(rows)})
    return known.filter(known["replica_id"].is_valid())
