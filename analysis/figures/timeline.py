"""Figure over time: requests in flight, the servers' state, rolling latencies, the windows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity.window_counts import NS
from analysis.figures import canvas, server_state
from analysis.figures.canvas import Axes, Floats, Look
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.windows import LATENCIES, LATENCY, bounds_ms, counted, lines, ms, requests
from analysis.results.runs import Run
from analysis.rows import metrics
from analysis.stats.quantiles import quantile
from conf.specs.bounds import LIMITS, QUANTILE, Limit

HEIGHT_IN = 6.4
ROLLING_S = 15.0
"""Seconds of due time in a rolling p90 (our choice: those of a ramp step)."""
LEAST_REQUESTS = 10
MOST_AT = 220
COLUMNS = ("send_offset_ns", "end_offset_ns", "phase", "status", *LATENCY)
FLOOR = -0.04
"""A little of the y axis lies below 0, so that a line at 0 is seen."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A stretch of the run in seconds of its clock; `window` is None outside windows."""

    start_s: float
    end_s: float
    window: int | None
    void: bool


@dataclass(frozen=True, slots=True)
class _Timeline:
    """Everything at the instants `at_s`; nan is unknown, infinite a p90 among failures."""

    at_s: Floats
    in_flight: Floats
    p90_ms: Mapping[Limit, Floats]
    server: server_state.ServerState
    spans: tuple[_Stretch, ...]


def plot_timeseries(run: Run, ax: Axes | None = None) -> Axes:
    """Requests in flight, running and waiting; KV use and hit rate; rolling p90 of TTFT and TPOT, over time.

    Windows are shaded, void ones hatched. Unreported state is left out. Also of a run that did not
    end. Raises NoData without a request that was sent.
    """
    ax = ax or canvas.new_axes(HEIGHT_IN)
    found, bounds = _timeline(run), bounds_ms(run)
    load, cache, *latencies = canvas.panels(ax, (1.2, 0.8, 1, 1), top=0.05, gaps=(0.075, 0.03, 0.03))
    _draw_load(load, found)
    _draw_cache(cache, found.server)
    for panel, limit in zip(latencies, LIMITS, strict=True):
        _draw_p90(panel, found, limit, bounds.get(limit))
    for panel in (load, cache, *latencies):
        _shade(panel, found.spans, named=panel is load)
    load.set_xlim(found.at_s[0], found.at_s[-1])
    latencies[-1].set_xlabel("time since the start of the run's clock (s)")
    canvas.legend(load, columns=5)
    canvas.legend(cache)
    return ax


def timeseries_table(run: Run) -> pa.Table:
    """One row per window, or one of a run without any: requests in flight and the servers' state.

    Means are over the instants that are drawn, null where nothing was reported; p90s are the largest of the
    rolling ones.
    """
    found = _timeline(run)
    whole = _Stretch(float(found.at_s[0]), float(found.at_s[-1]), None, False)
    return pa.Table.from_pylist([_row(found, span) for span in found.spans or [whole]])


def timeseries_alt(run: Run) -> str:
    """Requests in flight, the fullest cache, and the highest rolling p90s."""
    found, bounds = _timeline(run), bounds_ms(run)
    said = [
        f"Over {found.at_s[-1] - found.at_s[0]:.0f} s up to {np.nanmax(found.in_flight):.0f} requests were in"
        f" flight, {np.nanmean(found.in_flight):.1f} on average."
    ]
    state = found.server
    if not np.isnan(state.kv_pct).all():
        said.append(
            f"KV use reached {np.nanmax(state.kv_pct):.3g} %, {np.nanmax(state.waiting):.0f} waited at most."
        )
    for limit in LIMITS:
        known = found.p90_ms[limit][~np.isnan(found.p90_ms[limit])]
        if len(known):
            top = float(known.max())
            reached = "was infinite among failures" if np.isinf(top) else f"reached {ms(top)}"
            said.append(f"The rolling p90 {limit.upper()} {reached} ({_bound(bounds.get(limit))}).")
    windows, void = len(found.spans), sum(span.void for span in found.spans)
    return " ".join([*said, f"{counted(windows, 'window')} shaded, {void} of them void."])


def rolling_p90(due_s: Floats, values: Floats, at_s: Floats) -> Floats:
    """p90 of `values` due in the `ROLLING_S` before each instant; nan with fewer than ten known ones.

    `due_s` ascends. A failure is infinite, so that a p90 among failures is.
    """
    known = ~np.isnan(values)
    due_s, values = due_s[known], values[known]
    first, end = np.searchsorted(due_s, at_s - ROLLING_S, "right"), np.searchsorted(due_s, at_s, "right")
    found = [
        quantile(values[a:b], QUANTILE) if b - a >= LEAST_REQUESTS else None
        for a, b in zip(first, end, strict=True)
    ]
    return np.array([np.nan if p90 is None else p90 for p90 in found])


def in_flight(sent_s: Floats, ended_s: Floats, at_s: Floats) -> Floats:
    """Requests sent and not ended at each instant; those whose end is unknown are left out."""
    known = ~(np.isnan(sent_s) | np.isnan(ended_s))
    sent, ended = np.sort(sent_s[known]), np.sort(ended_s[known])
    return (np.searchsorted(sent, at_s, "right") - np.searchsorted(ended, at_s, "right")).astype(np.float64)


def _timeline(run: Run) -> _Timeline:
    rows = requests(run, COLUMNS)
    rows = rows.filter(pa.array(~metrics.word_in(rows, "phase", "retracted")))
    due = metrics.numbers(rows, "due_ns") / NS
    sent = due + metrics.numbers(rows, "send_offset_ns") / NS
    ended = due + metrics.numbers(rows, "end_offset_ns") / NS
    if np.isnan(sent).all():
        raise NoData("no request was sent")
    last = float(np.nanmax(np.concatenate([due, ended])))
    at = np.linspace(due[0], last, int(np.clip(last - due[0], 2, MOST_AT)))
    p90 = {limit: rolling_p90(due, LATENCIES[limit](rows), at) for limit in LIMITS}
    state = server_state.state(run.timeseries(), at)
    return _Timeline(at, in_flight(sent, ended, at), p90, state, tuple(_spans(run)))


def _spans(run: Run) -> list[_Stretch]:
    try:
        found = lines(run)
    except NoData:
        return []
    return [
        _Stretch(line["window_start_ns"] / NS, line["window_end_ns"] / NS, line["index"], not line["valid"])
        for line in found
    ]


def _row(found: _Timeline, span: _Stretch) -> dict[str, Any]:
    inside = (found.at_s >= span.start_s) & (found.at_s < span.end_s)
    state = found.server
    means = {
        "in_flight_mean_requests": found.in_flight,
        "running_mean_requests": state.running,
        "waiting_mean_requests": state.waiting,
        "kv_use_mean_pct": state.kv_pct,
        "prefix_hit_mean_pct": state.hit_pct,
    }
    return {
        "window": span.window,
        "start_s": span.start_s,
        "end_s": span.end_s,
        "void": span.void,
        **{name: _known(np.mean, values[inside]) for name, values in means.items()},
        **{
            f"{name}_rolling_p90_largest_ms": _known(np.max, p90[inside])
            for name, p90 in found.p90_ms.items()
        },
    }


def _known(of: Callable[[Floats], Any], values: Floats) -> float | None:
    """A figure of the values that are known; None without one."""
    known = values[~np.isnan(values)]
    return float(of(known)) if len(known) else None


def _draw_load(ax: Axes, found: _Timeline) -> None:
    ax.plot(found.at_s, found.in_flight, color=canvas.BLUE, linewidth=1.3, label="in flight")
    _draw_reported(ax, found.at_s, "running", found.server.running, canvas.VERMILLION, "--")
    _draw_reported(ax, found.at_s, "waiting", found.server.waiting, canvas.BLACK, ":")
    top = 1.08 * ax.get_ylim()[1]
    ax.set_ylim(FLOOR * top, top)
    canvas.label(ax, "", "requests")


def _draw_cache(ax: Axes, state: server_state.ServerState) -> None:
    _draw_reported(ax, state.at_s, "KV cache in use", state.kv_pct, canvas.GREEN, "-")
    _draw_reported(ax, state.at_s, "prefix hit rate", state.hit_pct, canvas.PURPLE, "--")
    if not ax.get_lines():
        text = "neither KV use nor hit rate was told"
        canvas.note(ax, 0.5, 0.5, text, xycoords="axes fraction", ha="center", va="center")
    top = 1.08 * float(np.nanmax([state.kv_pct, state.hit_pct, np.ones_like(state.at_s)]))
    ax.set_ylim(FLOOR * top, top)
    canvas.label(ax, "", "%")


def _draw_reported(ax: Axes, at_s: Floats, name: str, values: Floats, color: str, line: str) -> None:
    """A line of what the servers reported; nothing where they did not."""
    if not np.isnan(values).all():
        ax.plot(at_s, values, color=color, linewidth=1.2, linestyle=line, label=name)


def _draw_p90(ax: Axes, found: _Timeline, limit: Limit, bound_ms: float | None) -> None:
    """The rolling p90 on a log axis; a thick line is where failures make it infinite."""
    values = found.p90_ms[limit]
    finite = values[np.isfinite(values)]
    ends = [*finite, *([] if bound_ms is None else [bound_ms])] or [1.0]
    high = max(ends) * 1.7
    ax.set_ylim(min(ends) / 1.2, high)
    canvas.log_axis(ax, "y")
    ax.plot(found.at_s, np.where(np.isinf(values), np.nan, values), color=canvas.BLUE, linewidth=1.3)
    infinite = np.where(np.isinf(values), high / 1.15, np.nan)
    if np.isinf(values).any():
        ax.plot(found.at_s, infinite, color=canvas.BLACK, linewidth=3.5, solid_capstyle="butt")
        text = "thick: infinite, for failures"
        canvas.note(ax, 0.995, 0.8, text, xycoords="axes fraction", ha="right", va="top")
    if bound_ms is not None:
        canvas.bound(ax, bound_ms, f"bound {ms(bound_ms)}", right=False)
    canvas.label(ax, "", f"p90 {limit.upper()} (ms)")


def _bound(bound_ms: float | None) -> str:
    return "no bound" if bound_ms is None else f"bound {ms(bound_ms)}"


def _shade(ax: Axes, spans: tuple[_Stretch, ...], named: bool) -> None:
    """Grey where a window was counted, hatched where it is void."""
    for void, name, hatch in ((False, "window", ""), (True, "void window", "xx")):
        shown = [(span.start_s, span.end_s) for span in spans if span.void is void]
        look: Look = {"facecolor": "#efefef", "edgecolor": canvas.PALE, "linewidth": 0, "zorder": 0}
        canvas.bands(ax, shown, **look, hatch=hatch, label=name if named else "")


EXHIBIT = Exhibit(
    "timeseries",
    "In flight, server state and rolling p90 over time",
    plot_timeseries,
    timeseries_table,
    timeseries_alt,
    "requests/*.parquet: offsets; timeseries.parquet: running, waiting, kv_usage, prefix_queries, "
    "prefix_hits; dwells.parquet: window_start_ns, window_end_ns, valid",
    HEIGHT_IN,
)
