"""Figures of latency: against the load that arrived, whole by rate, and the share over each bound."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.capacity import window_table
from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure, Look, qps
from analysis.figures.exhibit import WORDS, Exhibit, NoData, Row, RunData, WindowRows, mark
from analysis.stats.dispersion import quantile_interval
from analysis.stats.quantiles import quantile
from analysis.views.rates import UNKNOWN, VOID
from conf.specs.bounds import LIMITS, QUANTILE, Limit, allowed_over, label

SHOWN = {
    "p50": canvas.style(canvas.GREEN, "^", ":"),
    "p90": canvas.style(canvas.BLUE, "", "-"),
    "p99": canvas.style(canvas.PURPLE, "v", "--"),
}
OFFERED = canvas.dots(canvas.PALE, "|", 8)
NO_CURVE = (VOID, UNKNOWN)


class Latency(Exhibit):
    """p50, p90 and p99 of TTFT and TPOT over the load that arrived, each p90 with its 95 % interval.

    That load is in QPS per node of mean requests: a window in which few requests came, or short ones, lies
    left of the rate that was offered instead of looking like a dip of the latency. Bounds are lines, the
    capacity's 95 % interval is a band; a void run has no band. Raises NoData without a window.
    """

    def __init__(self, data: RunData) -> None:
        self.data = data
        self.rows = [_row(data, window) for window in data.windows]

    def draw(self, figure: Figure) -> None:
        panels = figure.subplots(len(LIMITS), sharex=True)
        rates = (rate for window in self.data.windows for rate in (window.load, window.rate))
        panels[0].set_xlim(*self.data.capacity.rates_around(rates))
        for panel, limit in zip(panels, LIMITS, strict=True):
            canvas.label(panel, "", f"{limit.upper()} (ms)")
            self._draw_quantiles(panel, limit)
            self._draw_capacity(panel)
            foot: Look = {"transform": panel.get_xaxis_transform(), "label": "rate offered"}
            panel.plot(
                [window.rate for window in self.data.windows], [0.03] * len(self.rows), **OFFERED, **foot
            )
        panels[-1].set_xlabel("load that arrived, rate offered (QPS per node)")
        figure.align_ylabels()

    def alt(self) -> str:
        """The range of the p90s, the bounds, and the capacity."""
        text = f"{super().alt()} Bounds: {self.data.bounds.text}. {self.data.capacity.sentence}"
        highest = max((window.load for window in self.data.windows if not window.void), default=math.inf)
        if (closed := self.data.capacity.closed) and (closed.high or 0.0) > highest:
            text += " The interval ends beyond the highest load that arrived: there it is the model's."
        return text

    def _draw_quantiles(self, ax: Axes, limit: Limit) -> None:
        """Curves of the windows that are not void, and every p90; the infinite stands at the upper edge."""
        values = [row[f"{limit}_{name}_ms"] for row in self.rows for name in SHOWN]
        top = canvas.latency_axis(ax, values, self.data.bounds_ms.get(limit), " on p90:")
        windows = sorted(zip(self.data.windows, self.rows, strict=True), key=lambda pair: pair[0].load)
        points = [(window.load, row, self.data.outcome(window.line, (limit,))) for window, row in windows]
        for name, look in SHOWN.items():
            curve = [(at, row[f"{limit}_{name}_ms"]) for at, row, ended in points if ended not in NO_CURVE]
            canvas.series(ax, curve, top, **look, label=name)
        for at, row, ended in points:
            low, p90, high = (row[f"{limit}_{name}_ms"] for name in ("p90_low", "p90", "p90_high"))
            if low is not None:
                ax.vlines(at, min(low, top), min(high, top), color=canvas.BLUE, linewidth=0.9)
            if p90 is not None:
                ax.plot([at], [min(p90, top)], **mark(ended), label=WORDS[ended])
        if math.inf in values:
            canvas.note(ax, 0.995, 0.98, "at the upper edge: infinite", **canvas.CORNER)

    def _draw_capacity(self, ax: Axes) -> None:
        capacity, (left, right) = self.data.capacity, ax.get_xlim()
        if not capacity.claim:
            return
        low, high = np.clip(canvas.within(capacity.claim, left, right), left, right)
        ax.axvspan(low, high, **canvas.BETWEEN, label=f"capacity: {capacity.words}")
        below = canvas.BELOW_DATA - 0.1
        if capacity.closed:
            ax.axvline(capacity.closed.value, **canvas.line(canvas.INK, width=1.1), zorder=below)
        if capacity.certified is not None:
            look = canvas.line(canvas.INK, "-.", 1.1)
            ax.axvline(capacity.certified, **look, zorder=below, label=capacity.certified_words)


def _row(data: RunData, window: WindowRows) -> Row:
    names = "work_qps_per_node", "requests", "failed", "goodput_qps_per_node"
    row: Row = {"window": window.window.index, "rate_qps_per_node": window.rate}
    row |= {name: window.line[name] for name in names} | {"outcome": data.outcome(window.line)}
    for limit in LIMITS:
        interval = quantile_interval(window.latency_ms[limit], QUANTILE, window.window.seconds)
        low, high = interval.ends or (None, None)
        row |= {f"{limit}_{name}_ms": window.line[f"{limit}_{name}_ms"] for name in SHOWN}
        row |= {f"{limit}_p90_low_ms": low, f"{limit}_p90_high_ms": high}
    return row


LEAST = 0.02
"""Smallest ratio that is drawn: of what is rarer nothing is to be seen."""


class ShareOver(Exhibit):
    """Share of the requests over each bound and the allowed one, in percent, of each window by start."""

    def __init__(self, data: RunData) -> None:
        lines, limits = data.lines(), data.bounds.limits
        if set(limits) <= set(LIMITS):
            raise NoData("every bound is in the figure of latency against load")
        if not any(line["valid"] for line in lines):
            raise NoData("every window is void")
        self.rows = [_share_row(line, limit) for line in lines for limit in limits]
        self.valid: dict[str, list[Row]] = {}
        """By bound, its rows of windows that are not void, by rate."""
        for row in sorted(self.rows, key=lambda row: row["rate_qps_per_node"]):
            if row["valid"]:
                self.valid.setdefault(row["bound"], []).append(row)

    def draw(self, figure: Figure) -> None:
        """Over the allowed share, on a log axis; a share of nothing stands at the lower edge."""
        ax = figure.subplots()
        for (bound, rows), look in zip(self.valid.items(), canvas.STYLES, strict=False):
            known = [row for row in rows if row["over_pct"] is not None]
            ratios = [max(row["over_pct"] / row["allowed_pct"], LEAST) for row in known]
            ax.plot([row["rate_qps_per_node"] for row in known], ratios, **look, label=bound)
        ax.set_ylim(LEAST / 1.3, 130)
        canvas.log_axis(ax, "y")
        canvas.label(ax, "rate offered (QPS per node)", "share over / allowed share")
        canvas.bound(ax, 1.0, "as many over as allowed")


def _share_row(line: Mapping[str, Any], limit: Limit) -> Row:
    share = window_table.over_share(line, limit)
    return {
        "window": line["index"],
        "rate_qps_per_node": line["rate_qps_per_node"],
        "bound": label(limit),
        "over_pct": None if share is None else 100 * share,
        "allowed_pct": 100 * allowed_over(limit),
        "valid": line["valid"],
    }


MOST_CURVES = 6
"""Most curves, evenly over the rates with the lowest and the highest among them: more are not told apart."""
SHARES = np.linspace(0, 1, 101)
"""Shares of the requests at which a curve has its points."""
CURVE_QUANTILES = (0.5, 0.9, 0.99)


class Cdf(Exhibit):
    """Share of the requests answered within each TTFT and each TPOT (ms, log), one curve per offered rate.

    A curve that passes to the left of the bound at 90 % keeps it. Quantiles of a
    window with failures are infinite where these reach. At most six valid windows are drawn. Raises NoData
    without a valid window.
    """

    def __init__(self, data: RunData) -> None:
        self.windows, self.bounds_ms = data.valid_by_rate, data.bounds_ms
        self.rows = [_curve_row(window, self.bounds_ms) for window in self.windows]

    def draw(self, figure: Figure) -> None:
        panels = figure.subplots(1, len(LIMITS), sharey=True)
        places = {round(place) for place in np.linspace(0, len(self.windows) - 1, MOST_CURVES)}
        few = [self.windows[place] for place in sorted(places)]
        for panel, limit in zip(panels, LIMITS, strict=True):
            _draw_curves(panel, limit, few, self.bounds_ms.get(limit))
        panels[0].set_ylabel("share of requests within")


def _curve_row(window: WindowRows, bounds_ms: Mapping[Limit, float]) -> Row:
    row: Row = {"window": window.window.index, "rate_qps_per_node": window.rate}
    row |= {"requests": window.rows.num_rows, "failed": window.line["failed"]}
    for limit in LIMITS:
        values = window.latency_ms[limit]
        known = values[~np.isnan(values)]
        within = np.mean(known <= bounds_ms[limit]) if len(known) and limit in bounds_ms else None
        row |= {f"{limit}_p{100 * q:g}_ms": quantile(values, q) for q in CURVE_QUANTILES}
        row[f"{limit}_within_bound_pct"] = None if within is None else 100 * float(within)
    return row


def _draw_curves(ax: Axes, limit: Limit, windows: Sequence[WindowRows], bound_ms: float | None) -> None:
    """One curve per window; that of one with failures ends below 1."""
    ends = [] if bound_ms is None else [bound_ms]
    for window, look in zip(windows, canvas.STYLES, strict=False):
        known = window.latency_ms[limit]
        known = known[~np.isnan(known)]
        if not np.isfinite(known).any():
            continue
        failed = window.line["failed"]
        name = f"{qps(window.rate)} QPS per node{f' ({failed} failed)' if failed else ''}"
        at = np.quantile(known, SHARES, method="inverted_cdf")
        ax.plot(at, SHARES, **look, markevery=25, label=name)
        ends += [float(at[0]), float(at[np.isfinite(at)][-1])]
    if ends:
        ax.set_xlim(min(ends) / 1.1, max(ends) * 1.15)
    ax.set_ylim(0, 1.02)
    canvas.log_axis(ax, "x")
    canvas.label(ax, f"{limit.upper()} (ms)", "")
    if bound_ms is None:
        return
    ax.axvline(bound_ms, **canvas.LIMIT)
    ax.axhline(QUANTILE, color=canvas.PALE, linewidth=0.8, linestyle=":")
    beside: Look = {"ha": "right", "xytext": (-3, 3), "rotation": 90, "va": "bottom"}
    canvas.note(ax, bound_ms, 0.02, f"bound {bound_ms:,.10g} ms", **beside)
