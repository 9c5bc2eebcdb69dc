"""Figure over time: requests in flight, the servers' state, rolling latencies, the windows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.capacity.window_counts import NS
from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure, Floats, Look, counted, ms
from analysis.figures.exhibit import COLUMNS, LATENCIES, Exhibit, NoData, Row, RunData
from analysis.rows import metrics
from analysis.stats.quantiles import quantile
from analysis.views.rates import COUNTED
from conf.specs.bounds import LIMITS, QUANTILE, Limit

ROLLING_S = 15.0
"""Seconds of due time in a rolling p90 (our choice: those of a ramp step)."""
LEAST_REQUESTS = 10
MOST_AT = 220
FLOOR = -0.04
"""A little of the y axis lies below 0, so that a line at 0 is seen."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """Sums of requests and means of shares (%) over the replicas that reported them; nan where none did."""

    running: Floats
    waiting: Floats
    kv_pct: Floats
    hit_pct: Floats


class Timeline(Exhibit):
    """Requests in flight, running and waiting; KV use and hit rate; rolling p90 of TTFT and TPOT, over time.

    Windows are shaded, void ones hatched. Unreported state is left out. Also of a run that did not
    end. Raises NoData without a request that was sent.
    """

    name = "timeseries"
    title = "In flight, server state and rolling p90 over time"
    section = "time", "Was the service steady?"
    purpose = "Requests in flight and what the servers reported of themselves, over time."
    source = (
        "requests/*.parquet: offsets; timeseries.parquet: running, waiting, kv_usage, prefix_queries, "
        "prefix_hits; windows.parquet: window_start_ns, window_end_ns, valid"
    )
    height_in = 6.0

    def __init__(self, data: RunData) -> None:
        rows = data.requests.select(COLUMNS)
        rows = rows.filter(pa.array(~metrics.word_in(rows, "phase", "retracted")))
        due = metrics.numbers(rows, "due_ns") / NS
        sent = due + metrics.numbers(rows, "send_offset_ns") / NS
        ended = due + metrics.numbers(rows, "end_offset_ns") / NS
        if np.isnan(sent).all():
            raise NoData("no request was sent")
        last = float(np.nanmax(np.concatenate([due, ended])))
        at = self.at_s = np.linspace(due[0], last, int(np.clip(last - due[0], 2, MOST_AT)))
        self.p90_ms = {limit: rolling_p90(due, LATENCIES[limit](rows), at) for limit in LIMITS}
        self.server, self.in_flight = server_state(data.run.timeseries(), at), in_flight(sent, ended, at)
        self.bounds_ms, self.spans = data.bounds_ms, _spans(data)
        whole: Row = {"window": None, "start_s": float(at[0]), "end_s": float(at[-1]), "void": False}
        self.rows = [span | self._figures(span["start_s"], span["end_s"]) for span in self.spans or [whole]]

    def draw(self, figure: Figure) -> None:
        load, cache, *latencies = figure.subplots(4, sharex=True, height_ratios=(1.2, 0.8, 1, 1))
        self._draw_load(load)
        self._draw_cache(cache)
        for panel, limit in zip(latencies, LIMITS, strict=True):
            self._draw_p90(panel, limit)
        for panel in (load, cache, *latencies):
            _shade(panel, self.spans)
        load.set_xlim(self.at_s[0], self.at_s[-1])
        latencies[-1].set_xlabel("time since the start of the run's clock (s)")
        figure.align_ylabels()

    def alt(self) -> str:
        """Requests in flight, the fullest cache, and the highest rolling p90s."""
        sentences = [
            f"Over {self.at_s[-1] - self.at_s[0]:.0f} s up to {np.nanmax(self.in_flight):.0f} requests were"
            f" in flight, {np.nanmean(self.in_flight):.1f} on average."
        ]
        kv_pct, waiting = self.server.kv_pct, self.server.waiting
        if not np.isnan(kv_pct).all():
            sentences.append(
                f"KV use reached {np.nanmax(kv_pct):.3g} %, {np.nanmax(waiting):.0f} waited at most."
            )
        for limit in LIMITS:
            known = self.p90_ms[limit][~np.isnan(self.p90_ms[limit])]
            if len(known):
                top = float(known.max())
                reached = "was infinite among failures" if np.isinf(top) else f"reached {ms(top)}"
                bound_ms = self.bounds_ms.get(limit)
                bound = "no bound" if bound_ms is None else f"bound {ms(bound_ms)}"
                sentences.append(f"The rolling p90 {limit.upper()} {reached} ({bound}).")
        void = sum(span["void"] for span in self.spans)
        return " ".join([*sentences, f"{counted(len(self.spans), 'window')} shaded, {void} of them void."])

    def _figures(self, start_s: float, end_s: float) -> Row:
        """Means over the instants in a stretch, null where nothing was reported; the largest rolling p90s."""
        inside = (self.at_s >= start_s) & (self.at_s < end_s)
        means = {
            "in_flight_mean_requests": self.in_flight,
            "running_mean_requests": self.server.running,
            "waiting_mean_requests": self.server.waiting,
            "kv_use_mean_pct": self.server.kv_pct,
            "prefix_hit_mean_pct": self.server.hit_pct,
        }
        row: Row = {name: _known(np.mean, values[inside]) for name, values in means.items()}
        largest = {limit: _known(np.max, p90_ms[inside]) for limit, p90_ms in self.p90_ms.items()}
        return row | {f"{limit}_rolling_p90_largest_ms": p90_ms for limit, p90_ms in largest.items()}

    def _draw_load(self, ax: Axes) -> None:
        ax.plot(self.at_s, self.in_flight, **canvas.line(canvas.BLUE), label="in flight")
        self._draw_reported(ax, "running", self.server.running, color=canvas.VERMILLION, linestyle="--")
        self._draw_reported(ax, "waiting", self.server.waiting, color=canvas.INK, linestyle=":")
        top = 1.08 * ax.get_ylim()[1]
        ax.set_ylim(FLOOR * top, top)
        canvas.label(ax, "", "requests")

    def _draw_cache(self, ax: Axes) -> None:
        kv_pct, hit_pct = self.server.kv_pct, self.server.hit_pct
        self._draw_reported(ax, "KV cache in use", kv_pct, color=canvas.GREEN, linestyle="-.")
        crossed: Look = {"marker": "x", "markersize": 4, "markevery": len(self.at_s) // 8 + 1}
        self._draw_reported(ax, "prefix hit rate", hit_pct, color=canvas.PURPLE, linestyle="--", **crossed)
        if not ax.get_lines():
            canvas.note(ax, 0.5, 0.5, "neither KV use nor hit rate was told", **canvas.MIDDLE)
        top = 1.08 * float(np.nanmax([kv_pct, hit_pct, np.ones_like(self.at_s)]))
        ax.set_ylim(FLOOR * top, top)
        canvas.label(ax, "", "%")

    def _draw_reported(self, ax: Axes, name: str, values: Floats, **look: Any) -> None:
        if not np.isnan(values).all():
            ax.plot(self.at_s, values, linewidth=1.2, label=name, **look)

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


def _shade(ax: Axes, spans: Sequence[Row]) -> None:
    for void, name, hatch in ((False, "window", ""), (True, "void window", "xx")):
        look: Look = {"facecolor": canvas.SHADE, "edgecolor": canvas.PALE, "linewidth": 0, "zorder": 0}
        for start_s, end_s in ((span["start_s"], span["end_s"]) for span in spans if span["void"] is void):
            ax.axvspan(start_s, end_s, **look, hatch=hatch, label=name)


STALE_S = 5.0
"""A sample of a gauge stands for so many seconds (our choice: some lost samples, not a lost replica)."""


def server_state(samples: pa.Table, at_s: Floats) -> ServerState:
    """The state at each of the ascending instants `at_s`, in seconds of the run's clock.

    The hit rate is hits over looked up since the instant before, from the counters' differences; a counter
    that fell (its replica began anew) says nothing of that step.
    """
    parts = [
        samples.filter(pc.equal(samples["replica"], name)).sort_by("clock_ns")
        for name in samples["replica"].unique()
    ]

    def each(name: str, figure: Callable[[Floats, Floats, Floats], Floats]) -> Floats:
        """A figure of every replica (rows) at every instant."""
        known = (_known_samples(part, name) for part in parts)
        return np.array([figure(*sample, at_s) for sample in known]).reshape(-1, len(at_s))

    running, waiting, kv_usage = (each(name, _held) for name in ("running", "waiting", "kv_usage"))
    looked, hits = (each(name, _grown).sum(axis=0) for name in ("prefix_queries", "prefix_hits"))
    hit_pct = np.where(looked > 0, 100 * hits / np.where(looked > 0, looked, 1), np.nan)
    kv_pct = 100 * _sum(kv_usage) / np.maximum((~np.isnan(kv_usage)).sum(axis=0), 1)
    return ServerState(_sum(running), _sum(waiting), kv_pct, hit_pct)


def _known_samples(part: pa.Table, name: str) -> tuple[Floats, Floats]:
    at, values = metrics.numbers(part, "clock_ns") / NS, metrics.numbers(part, name)
    kept = ~np.isnan(values)
    return at[kept], values[kept]


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
