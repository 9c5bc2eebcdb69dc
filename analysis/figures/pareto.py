"""Figure of throughput per GPU against what one user feels of it: the two axes that InferenceX uses."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from analysis.capacity.window_counts import NS
from analysis.figures import canvas
from analysis.figures.canvas import Figure
from analysis.figures.exhibit import Exhibit, NoData, counted, qps
from analysis.figures.run_data import RunData, draw_points
from analysis.results.runs import Run
from analysis.rows import metrics
from analysis.rows.metrics import Floats
from analysis.stats.quantiles import quantile
from conf import Experiment


@dataclass(frozen=True, slots=True)
class Pareto(Exhibit):
    """Output tokens/s/GPU and median interactivity in tokens/s/user of each valid window, by rate."""

    name = "pareto"
    title = "Throughput per GPU against interactivity"
    source = (
        "requests/*.parquet: token offsets, output_tokens; config.yaml: layout, cluster.nodes; "
        "windows.parquet: rate_qps_per_node, valid"
    )
    height_in = 3.6

    @classmethod
    def read(cls, subject: RunData) -> Self:
        if reason := unknown(subject.run.config):
            raise NoData(reason)
        came = Came(subject.requests.select(TOKEN_COLUMNS))
        rows = []
        for window in sorted((w for w in subject.windows if not w.void), key=lambda window: window.rate):
            per_user = interactivity(quantile(window.latency_ms["tpot"], 0.5))
            gpus = serving_gpus(subject.run.config, window.window.nodes)
            if per_user is None or gpus is None:
                continue
            start, end = window.window.window_start_ns / NS, window.window.window_end_ns / NS
            rows.append(
                {
                    "window": window.window.index,
                    "rate_qps_per_node": window.rate,
                    "interactivity_median_tok_per_s_user": per_user,
                    "output_tok_per_s_gpu": came.outputs(start, end) / (end - start) / gpus,
                    "gpus": gpus,
                    "outcome": subject.outcome(window.line),
                }
            )
        if not rows:
            raise NoData("no valid window has a time per output token")
        return cls(rows)

    def draw(self, figure: Figure) -> None:
        ax = figure.subplots()
        x = [row["interactivity_median_tok_per_s_user"] for row in self.rows]
        y = [row["output_tok_per_s_gpu"] for row in self.rows]
        draw_points(ax, list(zip(x, y, [row["outcome"] for row in self.rows], strict=True)))
        for i in _named(x, y):
            name = f"{qps(self.rows[i]['rate_qps_per_node'])} QPS"
            canvas.note(ax, x[i], y[i], name, xytext=(7, 0), ha="left", va="center")
        ax.set_xlim(0.85 * min(x), 1.2 * max(x) or 1.0)
        ax.set_ylim(0.85 * min(y), 1.1 * max(y) or 1.0)
        canvas.label(ax, "interactivity, 1000 / median TPOT (tok/s/user)", "output (tok/s/GPU)")

    def alt(self) -> str:
        """Both figures at the lowest and at the highest rate, and the number of GPUs."""
        rows = self.rows
        said = [
            f"{row['output_tok_per_s_gpu']:.3g} output tokens/s/GPU at"
            f" {row['interactivity_median_tok_per_s_user']:.3g} tokens/s/user when"
            f" {qps(row['rate_qps_per_node'])} QPS per node are offered"
            for row in (rows if len(rows) == 1 else (rows[0], rows[-1]))
        ]
        return f"{'; '.join(said)}; {counted(len(rows), 'window')} on {rows[0]['gpus']} GPUs that serve."


def plot_pareto(run: Run) -> Figure:
    """Output tokens per second and GPU against the median interactivity (tok/s/user), by valid window.

    Both are measured: tokens that came within the window, and 1000 / the median TPOT of its requests.
    Named by the offered QPS per node. Raises NoData where the GPUs are not known or no window is valid.
    """
    return Pareto.read(RunData(run)).figure()


def _named(x: list[float], y: list[float]) -> list[int]:
    """The points whose names do not lie on each other, the first and the last before all others."""
    kept: list[int] = []
    high, wide = 0.08 * (1.1 * max(y) - 0.85 * min(y)), 0.2 * (1.2 * max(x) - 0.85 * min(x))
    for i in dict.fromkeys((0, len(x) - 1, *range(len(x)))):
        if all(abs(y[i] - y[j]) > high or abs(x[i] - x[j]) > wide for j in kept):
            kept.append(i)
    return kept


TOKEN_COLUMNS = (
    *("due_ns", "status", "time_scale", "turn_blocked_ns", "output_tokens"),
    *("first_token_offset_ns", "engine_first_token_ns", "last_token_offset_ns", "engine_last_token_ns"),
)
"""Columns of a request that `Came` is made of."""


class Came:
    """Output tokens of whole answers at the time they came, whichever window their requests were due in.

    They come evenly between the first and the last. By due time an overloaded service would seem to make more
    in a window than its GPUs can.
    """

    def __init__(self, requests: pa.Table) -> None:
        rows = requests.filter(pa.array(metrics.status_in(requests, "ok")))
        due = metrics.numbers(rows, "due_ns")
        self._first: Floats = (due + metrics.token_offset_ns(rows, "first")) / NS
        self._last: Floats = (due + metrics.token_offset_ns(rows, "last")) / NS
        self._output: Floats = metrics.numbers(rows, "output_tokens")

    def outputs(self, start_s: float, end_s: float) -> float:
        """Output tokens that came from `start_s` on and before `end_s`; a single one comes with the first."""
        span = self._last - self._first
        inside = np.minimum(self._last, end_s) - np.maximum(self._first, start_s)
        part = np.where(span > 0, np.clip(inside, 0, None) / np.where(span > 0, span, 1), 0.0)
        began = (self._first >= start_s) & (self._first < end_s)
        return float(np.nansum(self._output * np.where(span > 0, part, began)))


def interactivity(tpot_ms: float | None) -> float | None:
    """Tokens/s of one user at a TPOT: 0 where failures made it infinite, None where it is not known."""
    if tpot_ms is None or not tpot_ms > 0:
        return None
    return 0.0 if math.isinf(tpot_ms) else 1e3 / tpot_ms


def unknown(asked: Experiment) -> str:
    """The reason why the number of GPUs is unknown; empty if it is known."""
    reasons = {
        "external": "how many GPUs stand behind the endpoints is not known",
        "vllm_cpu": "the engine ran on a CPU",
    }
    return reasons.get(asked.engine.kind, "")


def serving_gpus(asked: Experiment, nodes: int) -> int | None:
    """GPUs that serve on so many nodes: those of all its engines, not those that a node has besides.

    None where they are `unknown`.
    """
    layout = asked.layout
    return None if unknown(asked) else nodes * layout.gpus_per_node
