"""Figure of each replica's part of the requests, and its p90 TTFT window by window."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure, Look
from analysis.figures.exhibit import Exhibit, NoData, Row, counted, ms
from analysis.figures.run_data import RunData
from analysis.results.runs import Run
from analysis.stats.quantiles import quantile

MOST_NAMED = 10
"""More replicas than these have numbers instead of their ids."""
MOST_LETTERS = 10
MOST_DOTS = 300
MOST_ROWS = 30
"""Of more replicas the table has the busiest and the least busy half of these."""
SILENT = "no answer"
"""Name of a replica that was deployed and never answered."""


@dataclass(frozen=True, slots=True)
class ReplicaBalance(Exhibit):
    """Every replica, the busiest first, with its p90 TTFT in ms in each valid window where it answered."""

    replicas: Sequence[Row]
    p90s_ms: Sequence[Sequence[float]]
    bound_ms: float | None

    name = "replica_balance"
    title = "Balance of the replicas"
    source = "windows.parquet: by_replica (replica_id, requests, ttft_p90_ms), valid"
    height_in = 3.8

    @classmethod
    def read(cls, subject: RunData) -> Self:
        requests, p90s = _requests_and_p90s(subject)
        names = sorted(requests, key=lambda name: (-requests[name], name))
        total = sum(requests.values())
        rows = [
            {
                "replica": name,
                "requests": requests[name],
                "share_pct": 100 * requests[name] / total,
                "windows": len(p90s.get(name, ())),
                "ttft_p90_median_ms": quantile(np.array(p90s.get(name, ())), 0.5),
                "ttft_p90_largest_ms": max(p90s.get(name, ()), default=None),
            }
            for name in names
        ]
        half = MOST_ROWS // 2
        shown = rows if len(rows) <= MOST_ROWS else [*rows[:half], *rows[-half:]]
        return cls(shown, rows, [p90s.get(name, ()) for name in names], subject.bounds_ms.get("ttft"))

    def draw(self, figure: Figure) -> None:
        shares, latency = figure.subplots(2, sharex=True)
        self._draw_shares(shares)
        self._draw_latency(latency)
        latency.set_xlabel("replica, in order of its requests")
        if len(self.replicas) <= MOST_NAMED:
            names = [row["replica"][:MOST_LETTERS] for row in self.replicas]
            latency.set_xticks(range(len(names)), names)
        for panel in (shares, latency):
            panel.grid(False, axis="x")
        figure.align_ylabels()

    def alt(self) -> str:
        """Requests of the busiest and the least busy replica, and the range of the p90 TTFTs."""
        requests = [row["requests"] for row in self.replicas]
        mean = sum(requests) / len(requests)
        medians = [p90 for row in self.replicas if (p90 := row["ttft_p90_median_ms"]) is not None]
        low, high = ms(min(medians, default=None)), ms(max(medians, default=None))
        return (
            f"Of {counted(len(requests), 'replica')} the busiest got {requests[0] / mean:.2f} and the least"
            f" busy {requests[-1] / mean:.2f} times the mean of {mean:.0f} requests; their median p90 TTFTs"
            f" go from {low} to {high}."
        )

    def _draw_shares(self, ax: Axes) -> None:
        parts = [row["share_pct"] for row in self.replicas]
        look: Look = {"color": canvas.SKY, "edgecolor": canvas.BLUE, "label": "share of the requests"}
        ax.stairs(parts, np.arange(len(parts) + 1) - 0.5, fill=True, **look)
        even: Look = {"color": canvas.INK, "linestyle": "--", "linewidth": 1.1}
        ax.axhline(100 / len(parts), **even, label=f"even share, {100 / len(parts):.3g} %")
        ax.set_ylim(0, 1.12 * max(parts))
        canvas.label(ax, "", "requests (%)")

    def _draw_latency(self, ax: Axes) -> None:
        dots = [(i, p90) for i, p90s in enumerate(self.p90s_ms) for p90 in p90s]
        at, p90s = np.array(dots, dtype=np.float64).reshape(-1, 2).T
        finite = p90s[np.isfinite(p90s)]
        ends = [*finite, *([] if self.bound_ms is None else [self.bound_ms])] or [1.0]
        top = max(ends) * 1.45
        ax.set_ylim(min(ends) / 1.3, max(ends) * 1.6)
        canvas.log_axis(ax, "y")
        dot: Look = {"marker": "o", "markersize": 3.5, "markerfacecolor": "none", "color": canvas.BLUE}
        shown = canvas.thinned(at, np.minimum(p90s, top), most=MOST_DOTS)
        ax.plot(*shown, linestyle="", **dot, label="one window")
        medians = [row["ttft_p90_median_ms"] for row in self.replicas]
        known = [(i, min(p90, top)) for i, p90 in enumerate(medians) if p90 is not None]
        dash: Look = {"marker": "_", "markersize": 14 if len(medians) <= 40 else 4, "color": canvas.INK}
        xs, ys = [i for i, _ in known], [p90 for _, p90 in known]
        ax.plot(xs, ys, linestyle="", **dash, label="median of the windows")
        if self.bound_ms is not None:
            canvas.bound(ax, self.bound_ms, f"bound {ms(self.bound_ms)}")
        canvas.label(ax, "", "p90 TTFT (ms)")


def plot_replica_balance(run: Run) -> Figure:
    """Share of the requests (%) and p90 TTFT (ms) of each replica, the busiest first.

    Every circle is one valid window, the dash their median. Raises NoData where fewer than two replicas are
    known.
    """
    return ReplicaBalance.read(RunData(run)).figure()


def _requests_and_p90s(data: RunData) -> tuple[dict[str, int], dict[str, list[float]]]:
    """Of every replica in the valid windows; one that never answered has no requests."""
    valid = [line for line in data.lines() if line["valid"]]
    if not valid:
        raise NoData("every window is void")
    requests: dict[str, int] = {}
    p90s: dict[str, list[float]] = {}
    for row in (row for line in valid for row in line["by_replica"] or ()):
        name = row["replica_id"]
        requests[name] = requests.get(name, 0) + row["requests"]
        if row["ttft_p90_ms"] is not None:
            p90s.setdefault(name, []).append(row["ttft_p90_ms"])
    if not requests:
        raise NoData("which replica answered is not known")
    config = data.run.config
    deployed = 0 if config.engine.kind == "external" else config.replicas
    silent = max(0, deployed - len(requests))
    requests |= {f"{SILENT} {i + 1}": 0 for i in range(silent)}
    if len(requests) < 2:
        raise NoData("one replica answered everything: there is nothing to balance")
    return requests, p90s
