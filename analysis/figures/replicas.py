"""Figure of each replica's part of the requests, and its p90 TTFT window by window."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from analysis.figures import canvas
from analysis.figures.canvas import Axes, Look
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.windows import bounds_ms, counted, lines, ms
from analysis.results.runs import Run
from analysis.stats.quantiles import quantile

HEIGHT_IN = 4.0
MOST_NAMED = 10
"""More replicas than these have numbers instead of their ids."""
MOST_DOTS = 300
MOST_ROWS = 30
SILENT = "no answer"
"""Name of a replica that was deployed and never answered."""


@dataclass(frozen=True, slots=True)
class _ReplicaLoad:
    """Requests over all valid windows, and the p90 TTFT in ms of each window in which it answered."""

    name: str
    requests: int
    p90s_ms: tuple[float, ...]

    @property
    def median_p90_ms(self) -> float | None:
        return quantile(np.array(self.p90s_ms), 0.5)


def plot_replica_balance(run: Run, ax: Axes | None = None) -> Axes:
    """Share of the requests (%) and p90 TTFT (ms) of each replica, the busiest first.

    Every circle is one valid window, the dash their median. Raises NoData where fewer than two replicas are
    known.
    """
    found = _replicas(run)
    ax = ax or canvas.new_axes(HEIGHT_IN)
    shares, latency = canvas.panels(ax, (1, 1), top=0.07, gaps=(0.12,))
    _draw_shares(shares, found)
    _draw_latency(latency, found, bounds_ms(run).get("ttft"))
    latency.set_xlabel("replica, in order of its requests")
    if len(found) <= MOST_NAMED:
        latency.set_xticks(range(len(found)), [one.name[:10] for one in found])
    return ax


def replica_balance_table(run: Run) -> pa.Table:
    """One row per replica, the busiest first: requests, share, windows, median of its windows' p90 TTFT.

    Of more than thirty the busiest and the least busy fifteen. Raises NoData as the figure does.
    """
    found = _replicas(run)
    total = sum(replica.requests for replica in found)
    half = MOST_ROWS // 2
    kept = found if len(found) <= MOST_ROWS else [*found[:half], *found[-half:]]
    return pa.Table.from_pylist(
        [
            {
                "replica": replica.name,
                "requests": replica.requests,
                "share_pct": 100 * replica.requests / total,
                "windows": len(replica.p90s_ms),
                "ttft_p90_median_ms": replica.median_p90_ms,
                "ttft_p90_largest_ms": max(replica.p90s_ms, default=None),
            }
            for replica in kept
        ]
    )


def replica_balance_alt(run: Run) -> str:
    """Requests of the busiest and the least busy replica, and the range of the p90 TTFTs."""
    found = _replicas(run)
    mean = sum(replica.requests for replica in found) / len(found)
    busiest, least = found[0], found[-1]
    medians = [m for replica in found if (m := replica.median_p90_ms) is not None]
    return (
        f"Of {counted(len(found), 'replica')} the busiest got {busiest.requests / mean:.2f} and the least"
        f" busy {least.requests / mean:.2f} times the mean of {mean:.0f} requests; their median p90 TTFTs go"
        f" from {ms(min(medians, default=None))} to {ms(max(medians, default=None))}."
    )


def _replicas(run: Run) -> list[_ReplicaLoad]:
    """Every replica in the valid windows, the busiest first, and those that never answered."""
    requests: dict[str, int] = {}
    p90s: dict[str, list[float]] = {}
    valid = [line for line in lines(run) if line["valid"]]
    if not valid:
        raise NoData("every window is void")
    for line in valid:
        for one in line["by_replica"] or ():
            requests[one["replica_id"]] = requests.get(one["replica_id"], 0) + one["requests"]
            if one["ttft_p90_ms"] is not None:
                p90s.setdefault(one["replica_id"], []).append(one["ttft_p90_ms"])
    if not requests:
        raise NoData("which replica answered is not known")
    deployed = 0 if run.config.engine.kind == "external" else run.config.replicas
    silent = max(0, deployed - len(requests))
    requests |= {f"{SILENT} {i + 1}": 0 for i in range(silent)}
    if len(requests) < 2:
        raise NoData("one replica answered everything: there is nothing to balance")
    names = sorted(requests, key=lambda name: (-requests[name], name))
    return [_ReplicaLoad(name, requests[name], tuple(p90s.get(name, ()))) for name in names]


def _draw_shares(ax: Axes, found: Sequence[_ReplicaLoad]) -> None:
    total = sum(replica.requests for replica in found)
    parts = [100 * replica.requests / total for replica in found]
    look: Look = {"color": canvas.SKY, "edgecolor": canvas.BLUE, "label": "share of the requests"}
    ax.stairs(parts, np.arange(len(found) + 1) - 0.5, fill=True, **look)
    even: Look = {"color": canvas.INK, "linestyle": "--", "linewidth": 1.1}
    ax.axhline(100 / len(found), **even, label=f"even share, {100 / len(found):.3g} %")
    ax.set_ylim(0, 1.12 * max(parts))
    canvas.label(ax, "", "requests (%)")
    ax.grid(False, axis="x")
    canvas.legend(ax)


def _draw_latency(ax: Axes, found: Sequence[_ReplicaLoad], bound_ms: float | None) -> None:
    at = np.concatenate([np.full(len(replica.p90s_ms), float(i)) for i, replica in enumerate(found)])
    p90s = np.concatenate([np.array(replica.p90s_ms, dtype=np.float64) for replica in found])
    finite = p90s[np.isfinite(p90s)]
    ends = [*finite, *([] if bound_ms is None else [bound_ms])] or [1.0]
    high = max(ends) * 1.6
    ax.set_ylim(min(ends) / 1.3, high)
    canvas.log_axis(ax, "y")
    drawn = canvas.thinned(at, np.minimum(p90s, high / 1.1), most=MOST_DOTS)
    dot: Look = {"marker": "o", "markersize": 3.5, "markerfacecolor": "none", "color": canvas.BLUE}
    ax.plot(*drawn, linestyle="", **dot, label="one window")
    medians = [(i, m) for i, replica in enumerate(found) if (m := replica.median_p90_ms) is not None]
    xs, ys = [i for i, _ in medians], [min(m, high / 1.1) for _, m in medians]
    dash: Look = {"marker": "_", "markersize": 14 if len(found) <= 40 else 4, "color": canvas.INK}
    ax.plot(xs, ys, linestyle="", **dash, label="median of the windows")
    if bound_ms is not None:
        canvas.bound(ax, bound_ms, f"bound {ms(bound_ms)}")
    canvas.label(ax, "", "p90 TTFT (ms)")
    ax.grid(False, axis="x")
    canvas.legend(ax)


EXHIBIT = Exhibit(
    "replica_balance",
    "Balance of the replicas",
    plot_replica_balance,
    replica_balance_table,
    replica_balance_alt,
    "dwells.parquet: by_replica (replica_id, requests, ttft_p90_ms), valid",
    HEIGHT_IN,
)
