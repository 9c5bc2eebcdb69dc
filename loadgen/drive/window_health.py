"""Health of the load actors during one window, from their samples of a second each."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from analysis.capacity.rules import WindowEvidence
from analysis.capacity.window_counts import NS, Window

LEAST_COVERED = 0.95
"""Least covered share of a window: its mean in flight may be wrong by 5 % (the method, 5.1 L1)."""


def health_of(
    samples: Iterable[dict[str, Any]],
    window: Window,
    lost_actors: Sequence[str] = (),
    replicas: Collection[str] | None = None,
) -> WindowEvidence:
    """Evidence from the samples that lie in the window: mean shares, longest stall, mean in flight."""
    actors: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for sample in samples:
        began_ns = sample["clock_ns"] - sample["span_s"] * NS
        if (
            began_ns >= window.window_start_ns - NS // 2
            and sample["clock_ns"] <= window.window_end_ns + NS // 2
        ):
            actors[sample["client_id"]].append(sample)
    health = {f"client-{client_id:02d}": _figures(rows) for client_id, rows in sorted(actors.items())}
    # Whole seconds that leave out more of the window have another mean.
    least_s = LEAST_COVERED * window.seconds
    whole = (rows for rows in actors.values() if sum(row["span_s"] for row in rows) >= least_s)
    means = [_mean(rows, "in_flight_mean") for rows in whole]
    means_known = [mean for mean in means if mean is not None]
    return WindowEvidence(
        expected_replicas=replicas,
        health=health or None,
        lost_actors=tuple(lost_actors),
        in_flight_mean=sum(means_known) if len(means_known) == len(actors) > 0 else None,
    )


def _figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    figures = {name: _mean(rows, name) for name in ("cpu_share", "run_share")}
    figures["stall_ms"] = max(row["stall_ms"] for row in rows)
    return {name: value for name, value in figures.items() if value is not None}


def _mean(rows: list[dict[str, Any]], name: str) -> float | None:
    samples = [row for row in rows if row[name] is not None]
    span_s = sum(row["span_s"] for row in samples)
    return sum(row[name] * row["span_s"] for row in samples) / span_s if span_s else None
