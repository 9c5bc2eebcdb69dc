"""Figure over time: requests in flight, the servers' state, rolling latencies, the windows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.capacity.window_counts import NS
from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure, Floats, Look
from analysis.figures.exhibit import LATENCIES, Exhibit, NoData, Row, RunData
from analysis.rows import metrics
from analysis.stats.quantiles import quantile
from analysis.views.rates import COUNTED
from conf.specs.bounds import LIMITS, QUANTILE, Limit

ROLLING_S = 15.0
"""Seconds of due time in a rolling p90 (our choice: those of a ramp step)."""
LEAST_REQUESTS = 10
MOST_AT = 220
LINES: dict[str, dict[str, Look]] = {
    "requests": {
        "in flight": canvas.line(canvas.BLUE),
        "running": canvas.line(canvas.VERMILLION, "--"),
        "waiting": canvas.line(canvas.INK, ":"),
    },
    "pct": {
        "kv use": canvas.line(canvas.GREEN, "-."),
        "prefix hit": canvas.line(canvas.PURPLE, "--") | {"marker": "x", "markersize": 4, "markevery": 25},
    },
}
"""The lines of the first two panels by their unit, each with its look."""
FLOOR = -0.04
"""A little of the y axis lies below 0, so that a line at 0 is seen."""


class Timeline(Exhibit):
    """Requests in flight, running and waiting; KV use and hit rate; rolling p90 of TTFT and TPOT, over time.

    Windows are shaded, void ones hatched. Unreported state is left out. Also of a run that did not
    end. Raises NoData without a request that was sent.
    """

    def __init__(self, data: RunData) -> None:
        rows = data.requests.filter(pa.array(~metrics.word_in(data.requests, "phase", "retracted")))
        due = metrics.numbers(rows, "due_ns") / NS
        sent = due + metrics.numbers(rows, "send_offset_ns") / NS
        ended = due + metrics.numbers(rows, "end_offset_ns") / NS
        if np.isnan(sent).all():
            raise NoData("no request was sent")
        last = float(np.nanmax(np.concatenate([due, ended])))
        at = self.at_s = np.linspace(due[0], last, int(np.clip(last - due[0], 2, MOST_AT)))
        self.p90_ms = {limit: rolling_p90(due, LATENCIES[limit](rows), at) for limit in LIMITS}
        self.lines = server_state(data.run.timeseries(), at) | {"in flight": in_flight(sent, ended, at)}
        self.bounds_ms, self.spans = data.bounds_ms, _spans(data)
        whole: Row = {"window": None, "start_s": float(at[0]), "end_s": float(at[-1]), "void": False}
        self.rows = [span | self._figures(span["start_s"], span["end_s"]) for span in self.spans or [whole]]

    def draw(self, figure: Figure) -> None:
        panels = figure.subplots(4, sharex=True, height_ratios=(1.2, 0.8, 1, 1))
        for panel, unit in zip(panels, LINES, strict=False):
            self._draw_lines(panel, unit)
        for panel, limit in zip(panels[2:], LIMITS, strict=True):
            self._draw_p90(panel, limit)
        shade: Look = {"facecolor": canvas.SHADE, "edgecolor": canvas.PALE, "linewidth": 0, "zorder": 0}
        for panel in panels:
            for span in self.spans:
                look = {"hatch": "xx", "label": "void window"} if span["void"] else {"label": "window"}
                panel.axvspan(span["start_s"], span["end_s"], **shade, **look)
        panels[0].set_xlim(self.at_s[0], self.at_s[-1])
        panels[-1].set_xlabel("time since the start of the run's clock (s)")
        figure.align_ylabels()

    def _figures(self, start_s: float, end_s: float) -> Row:
        """Means over the instants in a stretch, null where nothing was reported; the largest rolling p90s."""
        inside = (self.at_s >= start_s) & (self.at_s < end_s)
        row: Row = {
            f"{name.replace(' ', '_')}_mean_{unit}": _known(np.mean, self.lines[name][inside])
            for unit, looks in LINES.items()
            for name in looks
        }
        largest = {limit: _known(np.max, p90_ms[inside]) for limit, p90_ms in self.p90_ms.items()}
        return row | {f"{limit}_rolling_p90_largest_ms": p90_ms for limit, p90_ms in largest.items()}

    def _draw_lines(self, ax: Axes, unit: str) -> None:
        """What was reported in a unit, over time."""
        reported = {name: self.lines[name] for name in LINES[unit] if not np.isnan(self.lines[name]).all()}
        for name, values in reported.items():
            ax.plot(self.at_s, values, **LINES[unit][name], label=name)
        if not reported:
            canvas.note(ax, 0.5, 0.5, "nothing was reported", **canvas.MIDDLE)
        top = 1.08 * max([float(np.nanmax(values)) for values in reported.values()] + [1.0])
        ax.set_ylim(FLOOR * top, top)
        canvas.label(ax, "", "%" if unit == "pct" else unit)

    def _draw_p90(self, ax: Axes, limit: Limit) -> None:
        """The rolling p90 on a log axis; a thick line is where failures make it infinite."""
        values = self.p90_ms[limit]
        top = canvas.latency_axis(ax, values, self.bounds_ms.get(limit))
        ax.plot(self.at_s, np.where(np.isinf(values), np.nan, values), **canvas.line(canvas.BLUE))
        if np.isinf(values).any():
            infinite = np.where(np.isinf(values), top, np.nan)
            ax.plot(self.at_s, infinite, color=canvas.INK, linewidth=3.5, solid_capstyle="butt")
            canvas.note(ax, 0.995, 0.8, "thick: infinite, for failures", **canvas.CORNER)
        canvas.label(ax, "", f"p90 {limit.upper()} (ms)")


def rolling_p90(due_s: Floats, values: Floats, at_s: Floats) -> Floats:
    """p90 of `values` due in the `ROLLING_S` before each instant; nan with fewer than ten known ones.

    `due_s` ascends. A failure is infinite, so that a p90 among failures is.
    """
    known = ~np.isnan(values)
    due_s, values = due_s[known], values[known]
    first, end = np.searchsorted(due_s, at_s - ROLLING_S, "right"), np.searchsorted(due_s, at_s, "right")
    p90s = [
        quantile(values[a:b], QUANTILE) if b - a >= LEAST_REQUESTS else None
        for a, b in zip(first, end, strict=True)
    ]
    return np.array([np.nan if p90 is None else p90 for p90 in p90s])


def in_flight(sent_s: Floats, ended_s: Floats, at_s: Floats) -> Floats:
    """Requests sent and not ended at each instant; those whose end is unknown are left out."""
    known = ~(np.isnan(sent_s) | np.isnan(ended_s))
    sent, ended = np.sort(sent_s[known]), np.sort(ended_s[known])
    return (np.searchsorted(sent, at_s, "right") - np.searchsorted(ended, at_s, "right")).astype(np.float64)


def _spans(data: RunData) -> list[Row]:
    """The counted windows in seconds of the run's clock; none of a run without one."""
    return [
        {
            "window": line["index"],
            "start_s": line["window_start_ns"] / NS,
            "end_s": line["window_end_ns"] / NS,
            "void": not line["valid"],
        }
        for line in data.all_lines
        if line["kind"] in COUNTED
    ]


def _known(figure: Callable[[Floats], Any], values: Floats) -> float | None:
    """A figure of the values that are known; None without one."""
    known = values[~np.isnan(values)]
    return float(figure(known)) if len(known) else None


STALE_S = 5.0
"""A sample of a gauge stands for so many seconds (our choice: some lost samples, not a lost replica)."""


def server_state(samples: pa.Table, at_s: Floats) -> dict[str, Floats]:
    """The state at each of the ascending instants `at_s`, in seconds of the run's clock.

    Requests are sums over the replicas that reported, shares (%) means over them; nan where none did.
    The hit rate is hits over looked up since the instant before, from the counters' differences; a counter
    that fell (its replica began anew) says nothing of that step.
    """
    parts = [
        samples.filter(pc.equal(samples["replica"], name)).sort_by("clock_ns")
        for name in samples["replica"].unique()
    ]

    def each(name: str, figure: Callable[[Floats, Floats, Floats], Floats]) -> Floats:
        """A figure of every replica (rows) at every instant."""
        rows = []
        for part in parts:
            values = metrics.numbers(part, name)
            kept = ~np.isnan(values)
            rows.append(figure(metrics.numbers(part, "clock_ns")[kept] / NS, values[kept], at_s))
        return np.array(rows).reshape(-1, len(at_s))

    running, waiting, kv_usage = (each(name, _held) for name in ("running", "waiting", "kv_usage"))
    looked, hits = (each(name, _grown).sum(axis=0) for name in ("prefix_queries", "prefix_hits"))
    hit_pct = np.where(looked > 0, 100 * hits / np.where(looked > 0, looked, 1), np.nan)
    kv_pct = 100 * _sum(kv_usage) / np.maximum((~np.isnan(kv_usage)).sum(axis=0), 1)
    return {"running": _sum(running), "waiting": _sum(waiting), "kv use": kv_pct, "prefix hit": hit_pct}


def _held(at: Floats, values: Floats, at_s: Floats) -> Floats:
    """The last sample before each instant; nan where there is none, or none fresh enough."""
    if not len(at):
        return np.full(len(at_s), np.nan)
    last = np.searchsorted(at, at_s, "right") - 1
    fresh = (last >= 0) & (at_s - at[np.maximum(last, 0)] <= STALE_S)
    return np.where(fresh, values[np.maximum(last, 0)], np.nan)


def _grown(at: Floats, values: Floats, at_s: Floats) -> Floats:
    """Growth of a counter since the instant before; 0 where it is unknown."""
    if len(at) < 2:
        return np.zeros(len(at_s))
    grown = np.diff(np.interp(at_s, at, values), prepend=np.nan)
    return np.where(grown > 0, grown, 0.0)


def _sum(gauges: Floats) -> Floats:
    """Sum over the replicas (rows) that reported; nan where none did."""
    return np.where(np.isnan(gauges).all(axis=0), np.nan, np.nansum(gauges, axis=0))
