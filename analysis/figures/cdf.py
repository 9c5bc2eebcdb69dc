"""Figure of the whole distribution of TTFT and TPOT at each rate, against the bounds.

A failed request is infinitely late, so its curve does not reach 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure, Floats, Look
from analysis.figures.exhibit import Exhibit, Row, ms, qps, share
from analysis.figures.run_data import RunData, WindowRows
from analysis.results.runs import Run
from analysis.stats.quantiles import quantile
from conf.specs.bounds import LIMITS, QUANTILE, Limit

MOST_CURVES = 6
"""Most curves, evenly over the rates with the lowest and the highest among them: more are not told apart."""
MOST_STEPS = 100
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Cdf(Exhibit):
    """Every valid window by rate: p50, p90 and p99 in ms and the share within each bound.

    Quantiles of a window with failures are infinite where these reach.
    """

    windows: Sequence[WindowRows]
    bounds_ms: Mapping[Limit, float]

    name = "cdf"
    title = "TTFT and TPOT of every request, by rate"
    source = "requests/*.parquet: token offsets; windows.parquet: rate_qps_per_node, failed"

    @classmethod
    def read(cls, subject: RunData) -> Self:
        windows, bounds_ms = subject.valid_by_rate, subject.bounds_ms
        return cls([_row(window, bounds_ms) for window in windows], windows, bounds_ms)

    def draw(self, figure: Figure) -> None:
        panels = figure.subplots(1, len(LIMITS), sharey=True)
        for panel, limit in zip(panels, LIMITS, strict=True):
            _draw_curves(panel, limit, _shown(self.windows), self.bounds_ms.get(limit))
        panels[0].set_ylabel("share of requests within")

    def alt(self) -> str:
        """Share of the requests within each bound at the lowest and at the highest rate."""
        ends = self.rows if len(self.rows) == 1 else [self.rows[0], self.rows[-1]]
        said = []
        for limit in (limit for limit in LIMITS if limit in self.bounds_ms):
            parts = [(row[f"{limit}_within_bound_pct"], row["rate_qps_per_node"]) for row in ends]
            known = [
                f"{share(pct / 100)} at {qps(rate)} QPS per node" for pct, rate in parts if pct is not None
            ]
            if known:
                bound = ms(self.bounds_ms[limit])
                said.append(f"Within the {limit.upper()} bound of {bound}: {', '.join(known)}.")
        failed = sum(row["failed"] for row in self.rows)
        if failed:
            said.append(f"{failed} requests failed and count as infinitely late: their curves end below 1.")
        return " ".join([*said, "90 % are asked for."])


def plot_cdf(run: Run) -> Figure:
    """Share of the requests answered within each TTFT and each TPOT (ms, log), one curve per offered rate.

    The mark is the bound at 90 %: a curve that passes to the left of it keeps the bound. At most six valid
    windows are drawn. Raises NoData without a valid window.
    """
    return Cdf.read(RunData(run)).figure()


def steps(values: Floats, most: int = MOST_STEPS) -> tuple[Floats, Floats]:
    """Finite `values` in order, and the share of all known ones that is not above each; thinned to `most`.

    Of n known values the last finite one stands at 1 only where none is infinite.
    """
    known = np.sort(values[~np.isnan(values)])
    parts = np.arange(1, len(known) + 1) / max(len(known), 1)
    finite = np.isfinite(known)
    thin = canvas.thinned(known[finite], parts[finite], most=most)
    return thin[0], thin[1]


def _shown(windows: Sequence[WindowRows]) -> list[WindowRows]:
    if len(windows) <= MOST_CURVES:
        return list(windows)
    kept = np.linspace(0, len(windows) - 1, MOST_CURVES).round().astype(int)
    return [windows[i] for i in kept]


def _row(window: WindowRows, bounds_ms: Mapping[Limit, float]) -> Row:
    row: Row = {"window": window.window.index, "rate_qps_per_node": window.rate}
    row |= {"requests": window.rows.num_rows, "failed": window.line["failed"]}
    for limit in LIMITS:
        values = window.latency_ms[limit]
        known = values[~np.isnan(values)]
        within = np.mean(known <= bounds_ms[limit]) if len(known) and limit in bounds_ms else None
        row |= {f"{limit}_p{100 * q:g}_ms": quantile(values, q) for q in QUANTILES}
        row[f"{limit}_within_bound_pct"] = None if within is None else 100 * float(within)
    return row


def _draw_curves(ax: Axes, limit: Limit, windows: Sequence[WindowRows], bound_ms: float | None) -> None:
    """One curve per window; that of one with failures ends below 1."""
    ends = [] if bound_ms is None else [bound_ms]
    for window, style in zip(windows, canvas.STYLES, strict=False):
        at, part = steps(window.latency_ms[limit])
        if not len(at):
            continue
        failed = window.line["failed"]
        name = f"{qps(window.rate)} QPS per node{f' ({failed} failed)' if failed else ''}"
        ax.plot(at, part, **style.drawn, markevery=max(1, len(at) // 4), label=name)
        ends += [float(at[0]), float(at[-1])]
    if ends:
        ax.set_xlim(min(ends) / 1.1, max(ends) * 1.15)
    ax.set_ylim(0, 1.02)
    canvas.log_axis(ax, "x")
    canvas.label(ax, f"{limit.upper()} (ms)", "")
    if bound_ms is None:
        return
    ax.plot([bound_ms, bound_ms], [0, QUANTILE], **canvas.LIMIT)
    ax.plot([bound_ms], [QUANTILE], marker="<", markersize=8, color=canvas.VERMILLION, linestyle="")
    ax.axhline(QUANTILE, color=canvas.PALE, linewidth=0.8, linestyle=":")
    beside: Look = {"ha": "right", "xytext": (-3, 3), "rotation": 90, "va": "bottom"}
    canvas.note(ax, bound_ms, 0.02, f"bound {ms(bound_ms)}", **beside)
