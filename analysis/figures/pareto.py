"""Figure of throughput per GPU against interactivity, on the axes that InferenceX uses.

Draws what `analysis.results.per_gpu` defines.
"""

from dataclasses import dataclass
from typing import Self

from analysis.capacity.window_counts import NS
from analysis.figures import canvas
from analysis.figures.canvas import Figure
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.run_data import RunData, draw_points
from analysis.figures.words import counted, qps
from analysis.results import per_gpu
from analysis.results.runs import Run
from analysis.stats.quantiles import quantile


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
        if reason := per_gpu.unknown(subject.run.config):
            raise NoData(reason)
        came = per_gpu.Came(subject.requests.select(per_gpu.COLUMNS))
        rows = []
        for window in sorted((w for w in subject.windows if not w.void), key=lambda window: window.rate):
            per_user = per_gpu.interactivity(quantile(window.latency_ms["tpot"], 0.5))
            gpus = per_gpu.gpus(subject.run.config, window.window.nodes)
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
