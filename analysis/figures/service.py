"""Figures of what served: each replica's part of the requests, throughput per GPU, efficiency of nodes."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from analysis.capacity.window_counts import NS
from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure, Look, counted, qps
from analysis.figures.exhibit import WORDS, Exhibit, NoData, RunData, mark
from analysis.planning.sizing import ScalingEfficiency, scaling
from analysis.results.runs import Run, RunError
from analysis.rows import metrics
from analysis.stats.quantiles import quantile

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
        ax.set_ylim(0, 1.12 * max(parts))
        canvas.label(ax, "", "requests (%)")


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
        ax.set_xlim(0.85 * min(x), 1.2 * max(x) or 1.0)
        ax.set_ylim(0.85 * min(y), 1.1 * max(y) or 1.0)
        canvas.label(ax, "interactivity, 1000 / median TPOT (tok/s/user)", "output (tok/s/GPU)")


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
