"""Figures of what served: its state over time, each replica's part, throughput per GPU, efficiency."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.capacity.window_counts import NS
from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure, Floats, Look, counted, qps
from analysis.figures.exhibit import LATENCIES, WORDS, Exhibit, NoData, Row, RunData, mark
from analysis.planning.sizing import ScalingEfficiency, scaling
from analysis.results.runs import Run, RunError
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
        canvas.label(ax, "", "%" if unit == "pct" else unit, ylim=(FLOOR * top, top))

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


MOST_NAMED = 10
"""More replicas than these have numbers instead of their ids."""
MOST_LETTERS = 10
SILENT = "no answer"
"""Name of a replica that was deployed and never answered."""


class ReplicaBalance(Exhibit):
    """Share of the requests (%) and p90 TTFT (ms) of each replica, the busiest first.

    The p90s are the median and the largest of the valid windows. Raises NoData where fewer than two replicas
    are known.
    """

    def __init__(self, data: RunData) -> None:
        valid = [line for line in data.lines() if line["valid"]]
        if not valid:
            raise NoData("every window is void")
        requests: Counter[str] = Counter()
        p90s: dict[str, list[float]] = {}
        for row in (row for line in valid for row in line["by_replica"] or ()):
            requests[row["replica_id"]] += row["requests"]
            known = p90s.setdefault(row["replica_id"], [])
            known += [] if row["ttft_p90_ms"] is None else [row["ttft_p90_ms"]]
        if not requests:
            raise NoData("which replica answered is not known")
        config = data.run.config
        silent = 0 if config.engine.kind == "external" else max(0, config.replicas - len(requests))
        requests.update({f"{SILENT} {i + 1}": 0 for i in range(silent)})
        if len(requests) < 2:
            raise NoData("one replica answered everything: there is nothing to balance")
        self.rows = [
            {
                "replica": name,
                "requests": count,
                "share_pct": 100 * count / requests.total(),
                "windows": len(p90s.get(name, ())),
                "ttft_p90_median_ms": quantile(np.array(p90s.get(name, ())), 0.5),
                "ttft_p90_largest_ms": max(p90s.get(name, ()), default=None),
            }
            for name, count in sorted(requests.items(), key=lambda pair: (-pair[1], pair[0]))
        ]
        self.bound_ms = data.bounds_ms.get("ttft")

    def draw(self, figure: Figure) -> None:
        shares, latency = figure.subplots(2, sharex=True)
        self._draw_shares(shares)
        largest, median = (
            [row[f"ttft_p90_{name}_ms"] for row in self.rows] for name in ("largest", "median")
        )
        top = canvas.latency_axis(latency, largest, self.bound_ms)
        ring = canvas.dots(canvas.BLUE, "o", 3.5) | {"markerfacecolor": "none"}
        canvas.series(latency, enumerate(largest), top, **ring, label="largest of the windows")
        dash = canvas.dots(canvas.INK, "_", 8)
        canvas.series(latency, enumerate(median), top, **dash, label="median of the windows")
        canvas.label(latency, "replica, in order of its requests", "p90 TTFT (ms)")
        if len(self.rows) <= MOST_NAMED:
            names = [row["replica"][:MOST_LETTERS] for row in self.rows]
            latency.set_xticks(range(len(names)), names)
        for panel in (shares, latency):
            panel.grid(False, axis="x")
        figure.align_ylabels()

    def _draw_shares(self, ax: Axes) -> None:
        parts = [row["share_pct"] for row in self.rows]
        look: Look = {"color": canvas.SKY, "edgecolor": canvas.BLUE, "label": "share of the requests"}
        ax.stairs(parts, np.arange(len(parts) + 1) - 0.5, fill=True, **look)
        even = f"even share, {100 / len(parts):.3g} %"
        ax.axhline(100 / len(parts), **canvas.line(canvas.INK, "--", 1.1), label=even)
        canvas.label(ax, "", "requests (%)", ylim=(0, 1.12 * max(parts)))


UNKNOWN_GPUS = {
    "external": "how many GPUs stand behind the endpoints is not known",
    "vllm_cpu": "the engine ran on a CPU",
}
"""Engines of which the number of GPUs is unknown, and why."""


class Pareto(Exhibit):
    """Output tokens per second and GPU against the median interactivity (tok/s/user), by valid window.

    Both are measured: tokens that came within the window, and 1000 / the median TPOT of its requests.
    The lowest and the highest offered rate are named. Raises NoData where the GPUs are not known or no
    window is valid.
    """

    def __init__(self, data: RunData) -> None:
        config = data.run.config
        if reason := UNKNOWN_GPUS.get(config.engine.kind):
            raise NoData(reason)
        self.rows = []
        for window in data.valid_by_rate:
            tpot_ms = quantile(window.latency_ms["tpot"], 0.5)
            if not tpot_ms:
                continue
            gpus = window.window.nodes * config.layout.gpus_per_node  # those of engines alone
            start, end = window.window.window_start_ns / NS, window.window.window_end_ns / NS
            self.rows.append(
                {
                    "window": window.window.index,
                    "rate_qps_per_node": window.rate,
                    "interactivity_median_tok_per_s_user": 1e3 / tpot_ms,
                    "output_tok_per_s_gpu": output_tokens(data.requests, start, end) / (end - start) / gpus,
                    "gpus": gpus,
                    "outcome": data.outcome(window.line),
                }
            )
        if not self.rows:
            raise NoData("no valid window has a time per output token")

    def draw(self, figure: Figure) -> None:
        ax = figure.subplots()
        x = [row["interactivity_median_tok_per_s_user"] for row in self.rows]
        y = [row["output_tok_per_s_gpu"] for row in self.rows]
        for at, made, row in zip(x, y, self.rows, strict=True):
            ax.plot([at], [made], **mark(row["outcome"]), label=WORDS[row["outcome"]])
        for i in (0, -1):
            name = f"{qps(self.rows[i]['rate_qps_per_node'])} QPS"
            canvas.note(ax, x[i], y[i], name, xytext=(7, 0), ha="left", va="center")
        limits = {"xlim": (0.85 * min(x), 1.2 * max(x) or 1.0), "ylim": (0.85 * min(y), 1.1 * max(y) or 1.0)}
        canvas.label(ax, "interactivity, 1000 / median TPOT (tok/s/user)", "output (tok/s/GPU)", **limits)


def output_tokens(requests: pa.Table, start_s: float, end_s: float) -> float:
    """Output tokens of whole answers that came in a stretch, whichever window their requests were due in.

    They come evenly between the first and the last, a single one with the first. By due time an overloaded
    service would seem to make more in a window than its GPUs can.
    """
    rows = requests.filter(pa.array(metrics.status_in(requests, "ok")))
    due, tokens = metrics.numbers(rows, "due_ns"), metrics.numbers(rows, "output_tokens")
    first, last = ((due + metrics.token_offset_ns(rows, which)) / NS for which in ("first", "last"))
    span, inside = last - first, np.minimum(last, end_s) - np.maximum(first, start_s)
    part = np.where(span > 0, np.clip(inside, 0, None) / np.where(span > 0, span, 1), 0.0)
    began = (first >= start_s) & (first < end_s)
    return float(np.nansum(tokens * np.where(span > 0, part, began)))


BEYOND = 2.0
"""The assumption beyond the last measured count is shown up to so many times that count."""


class Scaling(Exhibit):
    """E(n), capacity per node at n nodes over that at the fewest measured, with 95 % intervals; n is log.

    Between the points the line is what a plan uses, beyond them it is ASSUMED and dashed. Raises NoData
    where one node count was measured, or where runs differ in more than it.
    """

    def __init__(self, subject: ScalingEfficiency | Sequence[Run]) -> None:
        try:
            efficiency = subject if isinstance(subject, ScalingEfficiency) else scaling(subject)
        except RunError as error:
            raise NoData(str(error)) from error
        if efficiency.assumed:
            only = counted(efficiency.fewest, "node")
            raise NoData(f"only {only} was measured, so that E(n) = 1 is an assumption")
        self.efficiency = efficiency
        rates = (point.qps_per_node for point in efficiency.points)
        self.rows = [
            {"nodes": nodes, "qps_per_node": rate, "e": e.value, "e_low": e.low, "e_high": e.high}
            for (nodes, e), rate in zip(efficiency.measured(), rates, strict=True)
        ]

    def draw(self, figure: Figure) -> None:
        ax = figure.subplots()
        rows, most = self.rows, self.efficiency.most
        end = round(BEYOND * most)
        ax.set_xlim(self.efficiency.fewest / 1.1, end * 1.03)
        ax.axhline(1, color=canvas.PALE, linewidth=1, linestyle=":", label="E = 1")
        nodes, beyond = [row["nodes"] for row in rows], np.geomspace(most, end, 20)
        measured = canvas.line(canvas.BLUE)
        ax.plot(nodes, [row["e"] for row in rows], marker="o", **measured, label="measured, 95 % interval")
        ax.plot(beyond, self.efficiency.at(beyond), **canvas.line(canvas.PURPLE, "--"), label="ASSUMED")
        at, low, high = zip(*((row["nodes"], row["e_low"], row["e_high"]) for row in rows[1:]), strict=True)
        ax.vlines(at, low, high, color=canvas.INK, linewidth=1.1)
        canvas.log_axis(ax, "x")
        ax.set_xticks([*nodes, end])
        canvas.label(ax, "nodes n", "E(n)")
