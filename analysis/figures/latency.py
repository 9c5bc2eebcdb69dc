"""Figure of latency against the load that arrived, with the bounds and the capacity."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from analysis.figures import canvas, several
from analysis.figures.canvas import Axes, Look, Style
from analysis.figures.exhibit import Exhibit
from analysis.figures.several import CapacityRow
from analysis.figures.windows import (
    LATENCIES,
    LATENCY,
    UNKNOWN,
    VOID,
    WindowRows,
    bounds_ms,
    draw_points,
    measured,
    ms,
    name_outcomes,
    outcome,
    qps,
)
from analysis.results.runs import Run
from analysis.results.text.certified_text import rounded_down
from analysis.stats.quantile_interval import quantile_interval
from conf.specs.bounds import LIMITS, QUANTILE, Limit, column

HEIGHT_IN = 5.0
SHOWN = {
    "p50": Style(canvas.GREEN, "^", ":"),
    "p90": Style(canvas.BLUE, "o", "-"),
    "p99": Style(canvas.PURPLE, "v", "--"),
}


@dataclass(frozen=True, slots=True)
class _WindowPoint:
    """One window in one panel: quantiles in ms, None if unknown, infinite with failures."""

    rate: float
    outcome: str
    p50: float | None
    p90: float | None
    p99: float | None
    interval: tuple[float, float] | None


def plot_latency_vs_qps(run: Run, ax: Axes | None = None) -> Axes:
    """p50, p90 and p99 of TTFT and TPOT over the load that arrived, each p90 with its 95 % interval.

    That load is in QPS per node of mean requests: a window in which few requests came, or short ones, lies
    left of its nominal rate instead of looking like a dip of the latency. Bounds are lines, the capacity's
    95 % interval is a band; a void run has no band. Raises NoData without a window.
    """
    ax = ax or canvas.new_axes(HEIGHT_IN)
    windows, bounds = measured(run, LATENCY), bounds_ms(run)
    both = canvas.panels(ax, (1, 1), top=0.14, gaps=(0.05,))
    by_load = sorted(windows, key=lambda window: window.load)
    for panel, limit in zip(both, LIMITS, strict=True):
        _panel(panel, _points(by_load, limit, bounds), bounds.get(limit))
        canvas.label(panel, "", f"{limit.upper()} (ms)")
    rates = [window.load for window in windows]
    capacity = several.of_run(run)
    # Beyond the rates, and beyond the band unless that is far off.
    left = max((capacity.low or math.inf) * 0.97, min(rates) / 1.5)
    right = min((capacity.high or 0.0) * 1.03, max(rates) * 1.5)
    both[0].set_xlim(min(min(rates) * 0.94, left), max(max(rates) * 1.06, right))
    for panel in both:
        _band(panel, capacity)
    both[-1].set_xlabel("load that arrived (QPS per node; nominal rates in the table)")
    outcomes = {outcome(one.line, bounds, (limit,)) for one in windows for limit in LIMITS}
    name_outcomes(both[0], outcomes)
    handles, labels = both[0].get_legend_handles_labels()
    canvas.legend(ax, columns=3, bbox_to_anchor=(0, 0.87), handles=handles, labels=labels)
    return ax


def latency_table(run: Run) -> pa.Table:
    """One row per window: offered and realised QPS per node, quantiles in ms, the p90's interval, outcome.

    Raises NoData without a window.
    """
    windows, bounds = measured(run, LATENCY), bounds_ms(run)
    points = {limit: _points(windows, limit, bounds) for limit in LIMITS}
    rows = []
    for i, window in enumerate(windows):
        row = {
            "window": window.window.index,
            "rate_qps_per_node": window.rate,
            "work_qps_per_node": window.line["work_qps_per_node"],
            "requests": window.line["requests"],
            "failed": window.line["failed"],
            "goodput_qps_per_node": window.line["goodput_qps_per_node"],
            "outcome": outcome(window.line, bounds),
        }
        for limit in LIMITS:
            point = points[limit][i]
            low, high = point.interval or (None, None)
            row |= {f"{limit}_{name}_ms": getattr(point, name) for name in SHOWN}
            row |= {f"{limit}_p90_low_ms": low, f"{limit}_p90_high_ms": high}
        rows.append(row)
    return pa.Table.from_pylist(rows)


def latency_alt(run: Run) -> str:
    """The rise of the p90s, the bounds, and the capacity."""
    windows = sorted(measured(run), key=lambda window: window.load)
    valid, bounds = [window for window in windows if not window.void], bounds_ms(run)
    if not valid:
        return f"All {len(windows)} windows are void: no latency is claimed."
    said = [_rise(valid, limit, bounds.get(limit)) for limit in LIMITS]
    void = len(windows) - len(valid)
    said += [f"Void and not counted: {void} of {len(windows)} windows."] if void else []
    capacity = several.of_run(run)
    if not capacity.known:
        return " ".join([*said, "No capacity is claimed."])
    certified = "" if capacity.certified is None else f", certified {_certified(capacity.certified)}"
    said.append(f"The capacity in QPS per node is {capacity.words}{certified}.")
    if (ends := capacity.closed) and ends[2] > valid[-1].load:
        said.append("The interval ends beyond the highest load that arrived: there it is the model's.")
    return " ".join(said)


def _certified(rate: float) -> str:
    """A certified rate as `qps` shows rates, but rounded down."""
    return qps(rounded_down(rate, 2 if rate < 100 else 0))


def _rise(valid: Sequence[WindowRows], limit: Limit, bound: float | None) -> str:
    first, last = valid[0], valid[-1]
    low, high = (ms(window.line[column(limit)]) for window in (first, last))
    path = f"goes from {low} at {qps(first.load)} QPS per node to {high} at {qps(last.load)}"
    if len(valid) == 1:
        path = f"is {low} at {qps(first.load)} QPS per node"
    if bound is None:
        return f"p90 {limit.upper()} {path}; it has no bound."
    p90s = [window.line[column(limit)] for window in valid]
    over = sum(p90 is not None and p90 > bound for p90 in p90s)
    return f"p90 {limit.upper()} {path}; over the bound of {ms(bound)} in {over} of {len(valid)} windows."


def _points(windows: Sequence[WindowRows], limit: Limit, bounds: Mapping[Limit, float]) -> list[_WindowPoint]:
    found = []
    for window in windows:
        known = {name: window.line[f"{limit}_{name}_ms"] for name in SHOWN}
        interval = quantile_interval(LATENCIES[limit](window.rows), QUANTILE, window.window.seconds).ends
        found.append(
            _WindowPoint(window.load, outcome(window.line, bounds, (limit,)), **known, interval=interval)
        )
    return found


def _panel(ax: Axes, points: Sequence[_WindowPoint], bound_ms: float | None) -> None:
    """Curves of the windows that are not void and every p90; what is infinite stands at the upper edge."""
    figures = [getattr(point, name) for point in points for name in SHOWN]
    finite = [figure for figure in figures if figure is not None and math.isfinite(figure)]
    # What is infinite stands above the bound's name.
    room = 3 if math.inf in figures else 1.45
    ends = [*finite, *([bound_ms] if bound_ms is not None else [])] or [1.0]
    low, high = min(ends) / 1.3, max(ends) * room
    ax.set_ylim(low, high)
    canvas.log_axis(ax, "y")
    top = high / 1.12
    for name, style in SHOWN.items():
        known = [(p.rate, getattr(p, name)) for p in points if p.outcome not in (VOID, UNKNOWN)]
        known = [(rate, min(value, top)) for rate, value in known if value is not None]
        look = {**style.drawn, "linewidth": 1.6, "marker": ""} if name == "p90" else style.drawn
        ax.plot([rate for rate, _ in known], [value for _, value in known], **look, label=name)
    _draw_p90s(ax, points, (low, top))
    if bound_ms is not None:
        canvas.bound(ax, bound_ms, f"bound on p90: {ms(bound_ms)}", right=False)


def _draw_p90s(ax: Axes, points: Sequence[_WindowPoint], edges: tuple[float, float]) -> None:
    """The p90 of each window by outcome, and its interval as far as it is within the edges."""
    known = [(point, point.p90) for point in points if point.p90 is not None]
    whiskers = [(point.rate, np.clip(point.interval, *edges)) for point, _ in known if point.interval]
    at = [[rate, rate] for rate, _ in whiskers], [list(ends) for _, ends in whiskers]
    canvas.segments(ax, *at, color=canvas.BLUE, linewidth=0.9)
    draw_points(ax, [(point.rate, min(p90, edges[1]), point.outcome) for point, p90 in known], named=False)
    for point, p90 in known:
        if math.isinf(p90):
            canvas.note(ax, point.rate, edges[1], "infinite", xytext=(-6, 0), ha="right", va="center")


def _band(ax: Axes, capacity: CapacityRow) -> None:
    if not capacity.known:
        return
    left, right = ax.get_xlim()
    low = left if capacity.low is None else max(capacity.low, left)
    high = right if capacity.high is None else min(capacity.high, right)
    shade: Look = {"facecolor": canvas.ORANGE, "alpha": 0.16, "linewidth": 0}
    ax.axvspan(low, high, **shade, label=f"capacity: {capacity.words}")
    look: Look = {"color": canvas.INK, "linewidth": 1.1, "zorder": canvas.BELOW_DATA - 0.1}
    if capacity.estimate is not None:
        ax.axvline(capacity.estimate, **look)
    if capacity.certified is not None:
        certified = f"certified {_certified(capacity.certified)}"
        ax.axvline(capacity.certified, **look, linestyle="-.", label=certified)


EXHIBIT = Exhibit(
    "latency",
    "Latency against load",
    plot_latency_vs_qps,
    latency_table,
    latency_alt,
    "dwells.parquet: work_qps_per_node, ttft_p50_ms to tpot_p99_ms, valid; 95 % intervals of p90 from "
    "requests/*.parquet; sweep.json: capacity",
    HEIGHT_IN,
)
