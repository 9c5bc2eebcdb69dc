"""Spread of a window's requests over replicas and sessions, as the routing made it.

Knows request rows; knows no policy. An unknown figure, as without sessions or replica ids, is None.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.rows import metrics
from analysis.stats.quantiles import quantile
from conf.specs.bounds import QUANTILE, column

FIGURES = ("prefix_hit", "replicas_per_session", "max_over_mean_share")


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


def by_replica(rows: pa.Table) -> list[dict[str, Any]]:
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


def lines(tree: Mapping[str, Any]) -> list[str]:
    """Lines on the routing over all valid windows of a run; none without sessions, and none for a study."""
    asked = tree["asked"]
    if not (asked.get("sessions") or asked.get("conversations")) or "dwells" not in tree:
        return []
    if tree.get("forecast"):  # a prediction says it beside its latencies
        return []
    used = [dwell for dwell in tree["dwells"] if dwell["valid"]]
    hit, met, share = (_mean(used, figure) for figure in FIGURES)
    who = (
        f"{asked['sessions']} sessions"
        if asked.get("sessions")
        else f"{asked['conversations']} conversations"
    )
    sessions = f"{who}, routing {asked['routing']} by {asked['data_path']}"
    words = (
        f"hit rate {_figure(hit)}, {_figure(met)} replicas per session, busiest replica "
        f"{_figure(share)} of the mean"
    )
    return [f"  {sessions}: {words}", *_blocked(used)]


def _blocked(dwells: list[Mapping[str, Any]]) -> list[str]:
    longest = max((dwell.get("turn_blocked_max_ms") or 0.0 for dwell in dwells), default=0.0)
    if not longest:
        return []
    share = _mean(dwells, "turns_blocked") or 0.0
    return [
        f"  {share:.1%} of the turns were due before the answer before had ended; longest {longest:.0f} ms"
    ]


def _mean(dwells: list[Mapping[str, Any]], figure: str) -> float | None:
    """Mean over windows, weighted by their requests; None if it is unknown in any of them."""
    values = [dwell.get(figure) for dwell in dwells]
    if not values or any(value is None for value in values):
        return None
    return float(
        np.average(np.array(values, dtype=np.float64), weights=[dwell["requests"] for dwell in dwells])
    )


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _words(rows: pa.Table) -> pa.ChunkedArray:
    return rows.column("replica_id").cast(pa.string())


def _answered(rows: pa.Table) -> pa.Table:
    """Session and replica of the requests whose replica is known."""
    known = pa.table({"session_id": rows.column("session_id"), "replica_id": _words(rows)})
    return known.filter(known["replica_id"].is_valid())
